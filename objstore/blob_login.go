package objstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// blobLogin is what requests to one account are signed with: exactly one of key, sas
// and token.
type blobLogin struct {
	from     string // where it was found, for messages
	key      *container.SharedKeyCredential
	sas      string // a query without its question mark
	token    azcore.TokenCredential
	endpoint string   // the connection string's own, or ""
	secrets  []string // texts that no error may hold
}

// findLogin takes the first that there is for the account: the location's own SAS
// token, the environment's connection string, key or SAS token, an Azure identity.
func findLogin(p blobPlace) (blobLogin, error) {
	if p.sas != "" {
		return sasLogin("the location", p.sas)
	}
	if text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" {
		login, account, err := connection(text)
		if err != nil || account == p.account {
			return login, err
		}
	}
	account := os.Getenv("AZURE_STORAGE_ACCOUNT")
	if key := os.Getenv("AZURE_STORAGE_KEY"); key != "" && account == p.account {
		return keyLogin("AZURE_STORAGE_KEY", account, key)
	}
	if sas := os.Getenv("AZURE_STORAGE_SAS_TOKEN"); sas != "" && (account == "" || account == p.account) {
		return sasLogin("AZURE_STORAGE_SAS_TOKEN", sas)
	}
	token, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: policy.ClientOptions{Cloud: cloudOf(p.host)},
	})
	if err != nil {
		return blobLogin{}, fmt.Errorf("an Azure identity: %s", oneLine(err))
	}
	return blobLogin{from: "the Azure identity", token: identity{token}, secrets: present(os.Getenv("AZURE_CLIENT_SECRET"))}, nil
}

// cloudOf says where an identity logs in. The zero value is the public cloud, or
// AZURE_AUTHORITY_HOST.
func cloudOf(host string) cloud.Configuration {
	switch {
	case strings.HasSuffix(host, ".core.chinacloudapi.cn"):
		return cloud.AzureChina
	case strings.HasSuffix(host, ".core.usgovcloudapi.net"):
		return cloud.AzureGovernment
	}
	return cloud.Configuration{}
}

func keyLogin(from, account, key string) (blobLogin, error) {
	cred, err := container.NewSharedKeyCredential(account, key)
	if err != nil {
		return blobLogin{}, fmt.Errorf("the account key in %s is not base64", from)
	}
	return blobLogin{from: from, key: cred, secrets: present(key)}, nil
}

func sasLogin(from, sas string) (blobLogin, error) {
	sas = strings.TrimPrefix(sas, "?")
	values, err := url.ParseQuery(sas)
	if err != nil || values.Get("sig") == "" {
		return blobLogin{}, fmt.Errorf("the SAS token in %s has no signature; copy it whole", from)
	}
	sig := values.Get("sig")
	return blobLogin{from: from, sas: sas, secrets: present(sas, sig, url.QueryEscape(sig))}, nil
}

// connection reads a connection string and says for which account it is.
func connection(text string) (blobLogin, string, error) {
	const from = "AZURE_STORAGE_CONNECTION_STRING"
	has := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		has[strings.ToLower(name)] = value
	}
	account, endpoint := has["accountname"], has["blobendpoint"]
	if account == "" {
		if u, err := url.Parse(endpoint); err == nil {
			account, _, _ = strings.Cut(u.Host, ".")
		}
	}
	login, err := blobLogin{}, error(nil)
	switch {
	case account != "" && has["accountkey"] != "":
		login, err = keyLogin(from, account, has["accountkey"])
	case account != "" && has["sharedaccesssignature"] != "":
		login, err = sasLogin(from, has["sharedaccesssignature"])
	default:
		err = errors.New(from + " needs AccountName and AccountKey, or BlobEndpoint and SharedAccessSignature")
	}
	login.endpoint = endpoint
	return login, account, err
}

func present(texts ...string) []string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return out
}

// identity tells a failed login from a failed request.
type identity struct{ azcore.TokenCredential }

func (i identity) GetToken(ctx context.Context, opt policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := i.TokenCredential.GetToken(ctx, opt)
	if err != nil && ctx.Err() == nil {
		err = loginError{err}
	}
	return token, err
}

type loginError struct{ error }

// oneLine is the text of an error that was made to fill a screen.
func oneLine(err error) string {
	words := strings.Fields(err.Error())
	out := words[:0]
	for _, w := range words {
		if strings.Trim(w, "-=") != "" { // a line drawn across
			out = append(out, w)
		}
	}
	return strings.Join(out, " ")
}
