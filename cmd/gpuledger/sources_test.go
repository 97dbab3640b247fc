package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpuledger/internal/pgtest"
	"gpuledger/internal/promtest"
)

// TestMetricsConfig reads each way to name and log in to a server as a file has it.
func TestMetricsConfig(t *testing.T) {
	t.Setenv("PROM_SECRET", "hush-env")
	for _, c := range []struct{ metrics, want string }{
		{`{url: "http://p", driver: query, retention: 30d, allow_partial: true}`, ""},
		{`{url: "http://p", headers: {X-Scope-OrgID: a}, http: {basic_auth: {username: me, password: "${PROM_SECRET}"}}}`, ""},
		{`{url: "http://p", http: {basic_auth: {username: me, password_file: secret/none-here}}}`, ""},
		{`{url: "http://p", http: {authorization: {credentials_file: token}}}`, ""},
		{`{url: "http://p", http: {oauth2: {client_id: me, client_secret: "${PROM_SECRET}", token_url: "http://t"}}}`, ""},
		{`{url: "https://p", http: {tls_config: {ca_file: none.pem, cert_file: c.pem, key_file: k.pem}, proxy_url: "http://proxy:3128"}}`, ""},
		{`{url: "https://p", sigv4: {region: eu-central-1, role_arn: "arn:aws:iam::111122223333:role/r"}}`, ""},
		{`{url: "https://p", sigv4: {region: eu-central-1, access_key: AKID, secret_key: "${PROM_SECRET}"}}`, ""},
		{`{url: "https://p", google: {}}`, ""},
		{`{url: "https://p", google: {credentials_file: key.json}}`, ""},

		{`{url: "ftp://me:hush@p"}`, "the URL is not one like"},
		{`{url: "http://p", driver: pull}`, `driver "pull" is not auto, remote_read or query`},
		{`{url: "http://p", retention: soon}`, `retention "soon" is not a time like 15d`},
		{`{url: "http://p", sigv4: {secret_key: "${PROM_SECRET}"}}`, "access_key and secret_key go together"},
		{`{url: "http://p", google: {}, http: {basic_auth: {username: me, password: "${PROM_SECRET}"}}}`, "basic_auth, google: only one"},
		{`{url: "http://p", http: {basic_auth: {username: me, password: "${PROM_SECRET}", password_file: x}}}`, "at most one of"},
		{`{url: "http://p", http: {basic_auth: {user: "hush"}}}`, "user"},
		{`{url: "http://p", sigv4: {zone: x}}`, "zone"},
	} {
		text := "clusters: [{name: c, metrics: {type: prometheus, " + strings.TrimPrefix(c.metrics, "{") + "}]\n"
		_, err := parseConfig("/etc/gpuledger/gpuledger.yaml", []byte(text))
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.metrics, err, c.want)
		case err != nil && strings.Contains(err.Error(), "hush"):
			t.Errorf("%v shows a secret", err)
		}
	}
}

// TestMetricsPaths: files of secrets are beside the configuration.
func TestMetricsPaths(t *testing.T) {
	cfg, err := parseConfig("/etc/gpuledger/gpuledger.yaml", []byte(`clusters:
- {name: a, metrics: {type: prometheus, url: "http://p", retention: 2w, http: {basic_auth: {username: me, password_file: secret/p}}}}
- {name: b, metrics: {type: prometheus, url: "http://p", google: {credentials_file: key.json}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	a, err := cfg.Clusters[0].Metrics.server(cfg.dir)
	if err != nil || a.HTTP.BasicAuth.PasswordFile != "/etc/gpuledger/secret/p" || a.Retention != 14*24*time.Hour || !a.HTTP.FollowRedirects {
		t.Errorf("%+v %v", a, err)
	}
	b, err := cfg.Clusters[1].Metrics.server(cfg.dir)
	if err != nil || b.Google.CredentialsFile != "/etc/gpuledger/key.json" {
		t.Errorf("%+v %v", b, err)
	}
}

// warning forwards to a server, whose query API seems to lack a store.
func warning(t *testing.T, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.ModifyResponse = func(resp *http.Response) error {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		body = bytes.Replace(body, []byte(`{"status":"success",`), []byte(`{"status":"success","warnings":["store 10.0.0.7 is away"],`), 1)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/read" { // as Thanos Query
			http.NotFound(w, r)
			return
		}
		r.Header.Del("Accept-Encoding")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// TestPartialAnswers: a warning of the store fails the load, unless it is allowed by
// flag or configuration; then it is said. Hours before a queried server's oldest
// sample are lost, as by remote read.
func TestPartialAnswers(t *testing.T) {
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	server := promtest.Start(t, fleetDay(t, day))
	front := warning(t, server)
	dsn, work := pgtest.New(t, migrate), t.TempDir()
	config := filepath.Join(work, "gpuledger.yaml")
	span := []string{"--config", config, "--from", "2026-10-05T09:00:00Z", "--to", "2026-10-05T10:00:00Z"}
	write(t, config, fmt.Sprintf("clusters: [{name: demo, metrics: {type: prometheus, url: %q}}]\n", front))
	code, _, errs := cli(t, dsn, append([]string{"ingest", "samples"}, span...)...)
	if code != exitFailed || !strings.Contains(errs, "store 10.0.0.7 is away") || !strings.Contains(errs, "--allow-partial") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if n := one(t, dsn, `SELECT count(*) FROM gpuledger.sample_load`); strings.TrimSpace(n) != "0" {
		t.Errorf("%s loads are stored", n)
	}
	check := func(code int, errs string) {
		t.Helper()
		if code != 0 || !strings.Contains(errs, "samples may be missing: store 10.0.0.7 is away") || !strings.Contains(errs, "driver=query") {
			t.Errorf("exit %d: %s", code, errs)
		}
	}
	code, _, errs = cli(t, dsn, append([]string{"ingest", "samples", "--allow-partial"}, span...)...)
	check(code, errs)
	write(t, config, fmt.Sprintf("clusters: [{name: demo, metrics: {type: prometheus, url: %q, allow_partial: true}}]\n", front))
	code, _, errs = cli(t, dsn, append([]string{"ingest", "samples"}, span...)...)
	check(code, errs)

	write(t, config, fmt.Sprintf("clusters: [{name: demo, metrics: {type: prometheus, url: %q, driver: query}}]\n", server))
	code, _, errs = cli(t, dsn, "ingest", "samples", "--config", config, "--from", "2026-10-04T22:00:00Z", "--to", "2026-10-05T01:00:00Z")
	if code != exitIncomplete || !strings.Contains(errs, "2 hours are older") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
