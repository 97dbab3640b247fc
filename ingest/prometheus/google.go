package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// Google gets tokens for Google Managed Prometheus, by the application default
// credentials (https://cloud.google.com/docs/authentication/application-default-credentials)
// or a file of credentials.
type Google struct {
	CredentialsFile string `yaml:"credentials_file"`
}

// monitoringRead allows to read metrics and nothing else.
const monitoringRead = "https://www.googleapis.com/auth/monitoring.read"

// tokenTimeout bounds one request for a token.
const tokenTimeout = 30 * time.Second

// googleTransport adds a token to each request. Credentials are looked for at the
// first one, as that may take the network.
type googleTransport struct {
	cfg  Google
	next http.RoundTripper

	mu    sync.Mutex
	found oauth2.TokenSource
}

func (t *googleTransport) source() (oauth2.TokenSource, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.found != nil {
		return t.found, nil
	}
	// The source outlives the request, so it gets no context that ends.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	var creds *google.Credentials
	var err error
	if t.cfg.CredentialsFile == "" {
		creds, err = google.FindDefaultCredentials(ctx, monitoringRead)
	} else {
		creds, err = readGoogleFile(ctx, t.cfg.CredentialsFile)
	}
	if err != nil {
		return nil, fmt.Errorf("google: %w", err)
	}
	t.found = creds.TokenSource
	return t.found, nil
}

// googleKinds are the kinds of credentials that a file may hold.
var googleKinds = []google.CredentialsType{
	google.ServiceAccount, google.AuthorizedUser, google.ImpersonatedServiceAccount, google.ExternalAccount,
}

func readGoogleFile(ctx context.Context, path string) (*google.Credentials, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Type google.CredentialsType `json:"type"`
	}
	if json.Unmarshal(raw, &file) != nil || !slices.Contains(googleKinds, file.Type) {
		return nil, fmt.Errorf("%s holds no credentials of a known type", filepath.Base(path))
	}
	creds, err := google.CredentialsFromJSONWithType(ctx, raw, file.Type, monitoringRead)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return creds, nil
}

// RoundTrip implements http.RoundTripper.
func (t *googleTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	source, err := t.source()
	if err != nil {
		return nil, err
	}
	token, err := source.Token()
	if err != nil {
		return nil, fmt.Errorf("google: %w", err)
	}
	withToken := req.Clone(req.Context()) // a RoundTripper may not change its request
	token.SetAuthHeader(withToken)
	return t.next.RoundTrip(withToken)
}
