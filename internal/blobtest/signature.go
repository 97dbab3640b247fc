package blobtest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signedBy says how a request is signed, or the status and code of its refusal.
func signedBy(r *http.Request) (how string, status int, code string) {
	auth := r.Header.Get("Authorization")
	switch {
	case r.URL.Query().Has("sig"):
		return signedBySAS(r, auth)
	case strings.HasPrefix(auth, "SharedKey "):
		if auth != "SharedKey "+Account+":"+sign(stringToSign(r)) {
			return "", http.StatusForbidden, "AuthenticationFailed"
		}
		return "key", 0, ""
	case strings.HasPrefix(auth, "Bearer "):
		if auth != "Bearer "+Bearer || r.TLS == nil {
			return "", http.StatusUnauthorized, "InvalidAuthenticationInfo"
		}
		return "bearer", 0, ""
	}
	return "", http.StatusUnauthorized, "NoAuthenticationInformation"
}

// signedBySAS holds the token to be the known one, apart from its end.
func signedBySAS(r *http.Request, auth string) (how string, status int, code string) {
	want, err := url.ParseQuery(SAS)
	if err != nil || auth != "" {
		return "", http.StatusBadRequest, "InvalidAuthenticationInfo"
	}
	got := r.URL.Query()
	for name := range want {
		if got.Get(name) != want.Get(name) && name != "se" {
			return "", http.StatusForbidden, "AuthenticationFailed"
		}
	}
	ends, err := time.Parse(time.RFC3339, got.Get("se"))
	if err != nil || ends.Before(time.Now()) {
		return "", http.StatusForbidden, "AuthenticationFailed"
	}
	return "sas", 0, ""
}

func sign(text string) string {
	key, err := base64.StdEncoding.DecodeString(Key)
	if err != nil {
		panic(err) // a constant of this package
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// stringToSign is what the service signs of a request with a shared key: the method,
// eleven headers, those of the service's own in order, and the resource with its query.
func stringToSign(r *http.Request) string {
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	h := r.Header
	lines := []string{
		r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-MD5"), h.Get("Content-Type"), h.Get("Date"),
		h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"), h.Get("If-Unmodified-Since"), h.Get("Range"),
	}
	own := map[string]string{}
	for name, values := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			own[name] = strings.Join(values, ",")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		lines = append(lines, name+":"+own[name])
	}
	lines = append(lines, "/"+Account+r.URL.EscapedPath())
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		lines = append(lines, strings.ToLower(name)+":"+strings.Join(slices.Sorted(slices.Values(query[name])), ","))
	}
	return strings.Join(lines, "\n")
}
