package objstore

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

const blobForms = "https://account.blob.core.windows.net/container/prefix"

// blobPlace is a location taken apart.
type blobPlace struct {
	account   string
	host      string // of the account's own endpoint
	container string
	path      string // below the container, decoded
	sas       string // the query as it was given, or ""
}

// blobHost is the account's name, then the clouds' suffixes, also those of accounts
// with a zone in their address. A -secondary is the same account's other region.
var blobHost = regexp.MustCompile(`^([a-z0-9]+)(?:-secondary)?\.(?:blob\.core(?:\.[a-z0-9-]+)+|(?:z[0-9]+\.)?blob\.storage\.azure\.net)$`)

// parseBlob reads a location. Its errors never hold the query, nor the parser's own
// text, which prints the whole.
func parseBlob(scheme, rest string) (blobPlace, error) {
	u, err := url.Parse("https://" + rest)
	if err != nil {
		return blobPlace{}, fmt.Errorf("objstore: %s location is not an address of the form %s", scheme, blobForms)
	}
	path := strings.TrimPrefix(u.Path, "/")
	p := blobPlace{host: strings.ToLower(u.Host), sas: u.RawQuery}
	switch {
	case scheme == "abfss":
		p.container, p.path = u.User.Username(), path
		if _, has := u.User.Password(); has {
			return blobPlace{}, errors.New("objstore: an abfss:// location must not hold credentials")
		}
		p.host = strings.Replace(p.host, ".dfs.", ".blob.", 1) // the same data under its other address
	case u.User != nil:
		return blobPlace{}, fmt.Errorf("objstore: an %s:// location must not hold credentials, other than a SAS token as its query", scheme)
	default:
		p.container, p.path, _ = strings.Cut(path, "/")
		if scheme == "az" {
			p.host += ".blob.core.windows.net"
		}
	}
	m := blobHost.FindStringSubmatch(p.host)
	switch {
	case m == nil:
		return blobPlace{}, fmt.Errorf("objstore: %s://%s is not Azure Blob Storage; use %s", scheme, u.Host, blobForms)
	case p.container == "" || u.Fragment != "":
		return blobPlace{}, fmt.Errorf("objstore: location of storage account %q is not of the form %s", m[1], blobForms)
	case p.sas != "" && !u.Query().Has("sig"):
		return blobPlace{}, fmt.Errorf("objstore: location of container %q: its query is no SAS token, for it has no signature", p.container)
	}
	p.account = m[1]
	return p, nil
}

// base is the container's address, for messages.
func (p blobPlace) base() string { return "https://" + p.host + "/" + p.container + "/" }

func openBlob(scheme, rest string, client *http.Client) (Store, error) {
	place, err := parseBlob(scheme, rest)
	if err != nil {
		return nil, err
	}
	login, err := findLogin(place)
	if err != nil {
		return nil, fmt.Errorf("objstore: %s: %w", place.base(), err)
	}
	endpoint, err := blobEndpoint(place, login)
	if err != nil {
		return nil, fmt.Errorf("objstore: %s: %w", place.base(), err)
	}
	at := strings.TrimSuffix(endpoint, "/") + "/" + url.PathEscape(place.container)
	opt := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: transport{client}, Telemetry: policy.TelemetryOptions{ApplicationID: "gpuledger"},
	}}
	s := &blobStore{within: newWithin(place.path), place: place, login: login}
	switch {
	case login.key != nil:
		s.client, err = container.NewClientWithSharedKeyCredential(at, login.key, opt)
	case login.sas != "":
		s.client, err = container.NewClientWithNoCredential(at+"?"+login.sas, opt)
	default:
		s.client, err = container.NewClient(at, login.token, opt)
	}
	if err != nil {
		return nil, fmt.Errorf("objstore: %s: %w", place.base(), s.noAnswer(err))
	}
	return s, nil
}

// blobEndpoint is where requests go: the account's address, unless the environment or
// the connection string has another.
func blobEndpoint(p blobPlace, login blobLogin) (string, error) {
	name, endpoint := "AZURE_STORAGE_BLOB_ENDPOINT", os.Getenv("AZURE_STORAGE_BLOB_ENDPOINT")
	if endpoint == "" {
		name, endpoint = "AZURE_STORAGE_CONNECTION_STRING", login.endpoint
	}
	if endpoint == "" {
		return "https://" + p.host, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", fmt.Errorf("the blob endpoint in %s is not of the form http://127.0.0.1:10000/account", name)
	}
	if u.Scheme == "http" && login.token != nil {
		return "", fmt.Errorf("an Azure identity is not used with %s over plain http, where anybody could read its token; set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY", name)
	}
	return endpoint, nil
}
