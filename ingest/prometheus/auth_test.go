package prometheus_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/config"

	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

// guard answers queries with nothing found, after check has let the request pass.
func guard(check func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !check(r) {
			http.Error(w, "refused: "+fmt.Sprint(r.Header), http.StatusUnauthorized) // with all that was sent
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	})
}

func start(t *testing.T, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// httpConfig reads the settings as they are in a file.
func httpConfig(t *testing.T, yaml string) config.HTTPClientConfig {
	t.Helper()
	c, err := config.LoadHTTPConfig(yaml)
	if err != nil {
		t.Fatal(err)
	}
	return *c
}

func secretFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func ask(s *prometheus.Source) error {
	s.SetRetryInterval(time.Millisecond)
	return s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil)
}

// passes, and refuses another secret without showing it.
func passes(t *testing.T, cfg prometheus.Config, secrets ...string) {
	t.Helper()
	cfg.Driver = prometheus.Query
	if err := ask(newSource(t, cfg)); err != nil {
		t.Error(err)
	}
	hides(t, cfg, secrets...)
}

// hides sends the same to a server that refuses it and repeats all it got.
func hides(t *testing.T, cfg prometheus.Config, secrets ...string) {
	t.Helper()
	cfg.Driver, cfg.MaxTries = prometheus.Query, 2
	cfg.URL = start(t, guard(func(*http.Request) bool { return false }))
	err := ask(newSource(t, cfg))
	if err == nil || !strings.Contains(err.Error(), "check the credentials") {
		t.Errorf("got %v", err)
	}
	for _, secret := range secrets {
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%v holds %q", err, secret)
		}
	}
}

func TestBasicAuth(t *testing.T) {
	url := start(t, guard(func(r *http.Request) bool {
		user, pass, _ := r.BasicAuth()
		return user == "me" && pass == "hush"
	}))
	for _, yaml := range []string{
		"basic_auth: {username: me, password: hush}",
		"basic_auth: {username: me, password_file: " + secretFile(t, "password", "hush\n") + "}",
	} {
		passes(t, prometheus.Config{URL: url, HTTP: httpConfig(t, yaml)}, "hush", "bWU6aHVzaA")
	}
}

func TestBearer(t *testing.T) {
	valid := atomic.Value{}
	valid.Store("first-token")
	url := start(t, guard(func(r *http.Request) bool {
		return r.Header.Get("Authorization") == "Bearer "+valid.Load().(string)
	}))
	passes(t, prometheus.Config{URL: url, HTTP: httpConfig(t, "authorization: {credentials: first-token}")}, "first-token")
	file := secretFile(t, "token", "first-token")
	cfg := prometheus.Config{URL: url, HTTP: httpConfig(t, "authorization: {credentials_file: "+file+"}")}
	passes(t, cfg, "first-token")
	// A token that is renewed, as Kubernetes does with those of service accounts.
	cfg.Driver = prometheus.Query
	s := newSource(t, cfg)
	if err := ask(s); err != nil {
		t.Fatal(err)
	}
	valid.Store("second-token")
	if err := ask(s); err == nil {
		t.Error("an old token passes")
	}
	if err := os.WriteFile(file, []byte("second-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(s); err != nil {
		t.Errorf("after the token was renewed: %v", err)
	}
}

func TestOAuth2(t *testing.T) {
	tokens := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		id, secret, _ := r.BasicAuth()
		if id == "" {
			id, secret = r.Form.Get("client_id"), r.Form.Get("client_secret")
		}
		if id != "me" || secret != "hush-client" || r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("scope") != "read" {
			http.Error(w, "refused "+id+" "+secret, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"granted-token","token_type":"Bearer","expires_in":3600}`)
	}))
	url := start(t, guard(func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer granted-token" }))
	for _, secret := range []string{"client_secret: hush-client", "client_secret_file: " + secretFile(t, "secret", "hush-client")} {
		passes(t, prometheus.Config{URL: url, HTTP: httpConfig(t, "oauth2: {client_id: me, scopes: [read], token_url: "+tokens+", "+secret+"}")}, "granted-token", "hush-client")
	}
	wrong := newSource(t, prometheus.Config{URL: url, Driver: prometheus.Query, MaxTries: 2, HTTP: httpConfig(t, "oauth2: {client_id: me, token_url: "+tokens+", client_secret: hush-wrong}")})
	if err := ask(wrong); err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
	// What follows the address of the token's server, or of where it sends us, is shown to nobody.
	away := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/?token=hush-redirect", http.StatusTemporaryRedirect)
	}))
	for _, tokens := range []string{"http://127.0.0.1:1/t?client_key=hush-query", away + "?client_key=hush-query"} {
		s := newSource(t, prometheus.Config{URL: url, Driver: prometheus.Query, MaxTries: 1, HTTP: httpConfig(t, "oauth2: {client_id: me, token_url: \""+tokens+"\", client_secret: hush-secret, endpoint_params: {key: hush-param}}")})
		if err := ask(s); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("got %v", err)
		}
	}
}

func TestHeaders(t *testing.T) {
	url := start(t, guard(func(r *http.Request) bool {
		return r.Header.Get("X-Scope-OrgID") == "tenant-a" && r.Header.Get("X-Key") == "header-key"
	}))
	passes(t, prometheus.Config{URL: url, Headers: map[string]string{"X-Scope-OrgID": "tenant-a", "X-Key": "header-key"}}, "header-key")
	passes(t, prometheus.Config{URL: url, HTTP: httpConfig(t, "http_headers: {X-Scope-OrgID: {values: [tenant-a]}, X-Key: {secrets: [header-key]}}")}, "header-key")
}

// TestProxy: the request arrives at the proxy with the whole URL of a host that
// only the proxy knows.
func TestProxy(t *testing.T) {
	ok := guard(func(*http.Request) bool { return true })
	var seen atomic.Value
	proxy := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.URL.String() + " " + r.Header.Get("Proxy-Authorization"))
		ok.ServeHTTP(w, r)
	}))
	withUser := strings.Replace(proxy, "http://", "http://me:hush@", 1)
	s := newSource(t, prometheus.Config{URL: "http://prometheus.invalid:9090", Driver: prometheus.Query, HTTP: httpConfig(t, "proxy_url: "+withUser)})
	if err := ask(s); err != nil {
		t.Fatal(err)
	}
	if got := seen.Load(); got != "http://prometheus.invalid:9090/api/v1/query Basic bWU6aHVzaA==" {
		t.Errorf("the proxy saw %v", got)
	}
	// A proxy that is away.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s = newSource(t, prometheus.Config{URL: "http://prometheus.invalid:9090", Driver: prometheus.Query, MaxTries: 1, HTTP: httpConfig(t, "proxy_url: http://me:hush@"+l.Addr().String())})
	if err := ask(s); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

// pair is a certificate with its key, as PEM files.
type pair struct {
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	certFile  string
	keyFile   string
	keyLine   string // a line of the key
	tlsLoaded tls.Certificate
}

func issue(t *testing.T, name string, by *pair) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	p := &pair{cert: cert, key: key, certFile: secretFile(t, name+".pem", string(certPEM)), keyFile: secretFile(t, name+"-key.pem", string(keyPEM))}
	p.keyLine = strings.Split(string(keyPEM), "\n")[1]
	if p.tlsLoaded, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMutualTLS(t *testing.T) {
	ca := issue(t, "ca", nil)
	server, client := issue(t, "server", ca), issue(t, "client", ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	srv := httptest.NewUnstartedServer(guard(func(r *http.Request) bool {
		return len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == "client"
	}))
	srv.Config.ErrorLog = discard()
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{server.tlsLoaded}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	srv.StartTLS()
	defer srv.Close()
	for yaml, want := range map[string]string{
		fmt.Sprintf("tls_config: {ca_file: %s, cert_file: %s, key_file: %s}", ca.certFile, client.certFile, client.keyFile): "",
		fmt.Sprintf("tls_config: {ca_file: %s}", ca.certFile):                                                               "certificate required",
		fmt.Sprintf("tls_config: {cert_file: %s, key_file: %s}", client.certFile, client.keyFile):                           "set tls_config.ca_file",
	} {
		err := ask(newSource(t, prometheus.Config{URL: srv.URL, Driver: prometheus.Query, MaxTries: 1, HTTP: httpConfig(t, yaml)}))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), client.keyLine)) {
			t.Errorf("%s: got %v, want %q", yaml, err, want)
		}
	}
}

// TestOneLogin: two ways at once contradict each other.
func TestOneLogin(t *testing.T) {
	basic := httpConfig(t, "basic_auth: {username: me, password: hush}")
	for want, cfg := range map[string]prometheus.Config{
		"basic_auth, sigv4":  {HTTP: basic, SigV4: &prometheus.SigV4{}},
		"basic_auth, google": {HTTP: basic, Google: &prometheus.Google{}},
		"sigv4, google":      {SigV4: &prometheus.SigV4{}, Google: &prometheus.Google{}},
		"go together":        {SigV4: &prometheus.SigV4{SecretKey: "hush"}},
		`driver "x"`:         {Driver: "x"},
	} {
		cfg.URL = "http://me:hush@prometheus"
		if _, err := prometheus.New(cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func readBody(t *testing.T, r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return body
}
