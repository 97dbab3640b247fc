package prometheus_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuledger/ingest/prometheus"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// signed recomputes the signature of a request as AWS documents it
// (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html).
func signed(t *testing.T, r *http.Request, key, secret, token, region string) bool {
	auth := r.Header.Get("Authorization")
	var scope, names, signature string
	for part := range strings.SplitSeq(strings.TrimPrefix(auth, "AWS4-HMAC-SHA256 "), ", ") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "Credential":
			scope = strings.TrimPrefix(value, key+"/")
		case "SignedHeaders":
			names = value
		case "Signature":
			signature = value
		}
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || time.Since(at).Abs() > 5*time.Minute || scope != date[:8]+"/"+region+"/aps/aws4_request" || r.Header.Get("X-Amz-Security-Token") != token {
		t.Logf("scope %q, date %q: %v", scope, date, err)
		return false
	}
	headers := strings.Split(names, ";")
	if !slices.Contains(headers, "host") || !slices.Contains(headers, "x-amz-date") || token != "" && !slices.Contains(headers, "x-amz-security-token") {
		t.Logf("signs only %v", headers)
		return false
	}
	var canonical strings.Builder
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), r.URL.RawQuery)
	for _, name := range headers {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&canonical, "%s:%s\n", name, strings.TrimSpace(value))
	}
	body := sha256.Sum256(readBody(t, r))
	fmt.Fprintf(&canonical, "\n%s\n%s", names, hex.EncodeToString(body[:]))
	sum := sha256.Sum256([]byte(canonical.String()))
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	k := []byte("AWS4" + secret)
	for _, part := range []string{date[:8], region, "aps", "aws4_request"} {
		k = mac(k, part)
	}
	return hex.EncodeToString(mac(k, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))) == signature
}

// noAWS keeps the machine's own settings out.
func noAWS(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", secretFile(t, "config", ""))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", secretFile(t, "credentials", "[reader]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = hush-profile\n"))
}

func TestSigV4(t *testing.T) {
	noAWS(t)
	const path = "/workspaces/ws-1"
	for _, c := range []struct {
		name               string
		cfg                prometheus.SigV4
		key, secret, token string
	}{
		{"keys", prometheus.SigV4{Region: "eu-central-1", AccessKey: "AKID", SecretKey: "hush-key"}, "AKID", "hush-key", ""},
		{"profile", prometheus.SigV4{Region: "eu-central-1", Profile: "reader"}, "AKIDPROFILE", "hush-profile", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := start(t, guard(func(r *http.Request) bool { return signed(t, r, c.key, c.secret, c.token, c.cfg.Region) }))
			passes(t, prometheus.Config{URL: url + path, SigV4: &c.cfg}, c.secret)
			// The check itself finds another key, region and body.
			if err := ask(newSource(t, prometheus.Config{URL: url, Driver: prometheus.Query, SigV4: &prometheus.SigV4{Region: "us-east-1", AccessKey: c.key, SecretKey: "hush-key"}})); err == nil {
				t.Error("another region passes")
			}
			if err := ask(newSource(t, prometheus.Config{URL: url, Driver: prometheus.Query, SigV4: &prometheus.SigV4{Region: "eu-central-1", AccessKey: c.key, SecretKey: "hush-other"}})); err == nil {
				t.Error("another key passes")
			}
		})
	}
	t.Run("environment", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "hush-env")
		t.Setenv("AWS_SESSION_TOKEN", "session-token")
		t.Setenv("AWS_REGION", "eu-west-1")
		url := start(t, guard(func(r *http.Request) bool { return signed(t, r, "AKIDENV", "hush-env", "session-token", "eu-west-1") }))
		passes(t, prometheus.Config{URL: url + path, SigV4: &prometheus.SigV4{}}, "hush-env")
	})
	t.Run("role", func(t *testing.T) {
		t.Setenv("AWS_ENDPOINT_URL_STS", start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.ParseForm()
			if r.Form.Get("Action") != "AssumeRole" || r.Form.Get("RoleArn") != "arn:aws:iam::111122223333:role/reader" || !strings.Contains(r.Header.Get("Authorization"), "Credential=AKID/") {
				http.Error(w, "refused", http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>hush-role</SecretAccessKey><SessionToken>role-token</SessionToken><Expiration>%s</Expiration>
</Credentials></AssumeRoleResult></AssumeRoleResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		})))
		url := start(t, guard(func(r *http.Request) bool { return signed(t, r, "ASIAROLE", "hush-role", "role-token", "eu-central-1") }))
		passes(t, prometheus.Config{URL: url + path, SigV4: &prometheus.SigV4{
			Region: "eu-central-1", AccessKey: "AKID", SecretKey: "hush-key", RoleARN: "arn:aws:iam::111122223333:role/reader",
		}}, "hush-key", "hush-role")
	})
	t.Run("no region", func(t *testing.T) {
		err := ask(newSource(t, prometheus.Config{URL: "http://127.0.0.1:1", Driver: prometheus.Query, MaxTries: 1, SigV4: &prometheus.SigV4{AccessKey: "AKID", SecretKey: "hush-key"}}))
		if err == nil || !strings.Contains(err.Error(), "set sigv4.region") || strings.Contains(err.Error(), "hush") {
			t.Errorf("got %v", err)
		}
	})
}

// serviceAccount is a key file whose tokens come from a server of the test, which
// checks what a token server of Google checks.
func serviceAccount(t *testing.T) (file, privateKey string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var url string
	url = start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		parts := strings.Split(r.Form.Get("assertion"), ".")
		if len(parts) != 3 {
			http.Error(w, "no assertion", http.StatusBadRequest)
			return
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		signature, err1 := base64.RawURLEncoding.DecodeString(parts[2])
		text, err2 := base64.RawURLEncoding.DecodeString(parts[1])
		var claims struct{ Iss, Scope, Aud string }
		err3 := json.Unmarshal(text, &claims)
		if err1 != nil || err2 != nil || err3 != nil || rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, sum[:], signature) != nil ||
			claims.Iss != "reader@p.iam.gserviceaccount.com" || claims.Aud != url || claims.Scope != "https://www.googleapis.com/auth/monitoring.read" {
			http.Error(w, fmt.Sprintf("refused %+v", claims), http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"ya29.granted","token_type":"Bearer","expires_in":3600}`)
	}))
	privateKey = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "reader@p.iam.gserviceaccount.com", "private_key_id": "1", "private_key": privateKey, "token_uri": url,
	})
	if err != nil {
		t.Fatal(err)
	}
	return secretFile(t, "key.json", string(text)), privateKey
}

func TestGoogle(t *testing.T) {
	url := start(t, guard(func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer ya29.granted" }))
	file, key := serviceAccount(t)
	line := strings.Split(key, "\n")[1]
	passes(t, prometheus.Config{URL: url + "/v1/projects/p/location/global/prometheus", Google: &prometheus.Google{CredentialsFile: file}}, "ya29.granted", line)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	passes(t, prometheus.Config{URL: url, Google: &prometheus.Google{}}, "ya29.granted", line)

	for text, want := range map[string]string{
		`{"type":"service_account","private_key":"hush-key"}`: "google: private key",
		`{"type":"other","private_key":"hush-key"}`:           "no credentials of a known type",
		`hush-key`: "no credentials of a known type",
	} {
		cfg := prometheus.Config{URL: url, Driver: prometheus.Query, MaxTries: 1, Google: &prometheus.Google{CredentialsFile: secretFile(t, "key.json", text)}}
		if err := ask(newSource(t, cfg)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
