package prometheus

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// secrets are texts that must not be shown, also where a server or proxy repeats
// them in its answer.
type secrets struct {
	texts []string
	files []string // read when there is something to show: they are re-read in use, too
	own   string   // the server's own address: its queries are ours
}

// gather collects what of the configuration is secret.
func gather(cfg Config, base *url.URL) secrets {
	var s secrets
	add := func(texts ...string) { s.texts = append(s.texts, texts...) }
	file := func(paths ...string) { s.files = append(s.files, paths...) }
	if user := base.User; user != nil {
		password, _ := user.Password()
		add(password, base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	for _, values := range base.Query() {
		add(values...)
	}
	s.own = base.Scheme + "://" + base.Host + base.Path
	for name, value := range cfg.Headers {
		if !strings.EqualFold(name, "X-Scope-OrgID") { // a tenant's name is none
			add(value)
		}
	}
	h := cfg.HTTP
	add(string(h.BearerToken))
	file(h.BearerTokenFile, h.TLSConfig.KeyFile)
	if b := h.BasicAuth; b != nil {
		add(string(b.Password), base64.StdEncoding.EncodeToString([]byte(b.Username+":"+string(b.Password))))
		file(b.PasswordFile)
	}
	if a := h.Authorization; a != nil {
		add(string(a.Credentials))
		file(a.CredentialsFile)
	}
	if o := h.OAuth2; o != nil {
		add(string(o.ClientSecret))
		file(o.ClientSecretFile, o.TLSConfig.KeyFile)
		for _, value := range o.EndpointParams {
			add(value)
		}
	}
	if u := h.ProxyURL.URL; u != nil && u.User != nil {
		password, _ := u.User.Password()
		add(password)
	}
	if h.HTTPHeaders != nil {
		for _, v := range h.HTTPHeaders.Headers {
			add(v.Values...)
			for _, secret := range v.Secrets {
				add(string(secret))
			}
			file(v.Files...)
		}
	}
	add(string(h.TLSConfig.Key))
	if cfg.SigV4 != nil {
		add(string(cfg.SigV4.SecretKey))
	}
	if cfg.Google != nil {
		file(cfg.Google.CredentialsFile)
	}
	return s
}

// inHeader is what follows the name of a scheme in an Authorization header: also
// tokens that were fetched on the way.
var inHeader = regexp.MustCompile(`(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}`)

// queried is an address with a query: what others give, or are given, there is theirs.
var queried = regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']+`)

// hide replaces every secret in a text. One of less than four characters is no
// secret, and replacing it would spoil the text.
func (s secrets) hide(text string) string {
	all := slices.Clone(s.texts)
	for _, path := range s.files {
		if path == "" {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		all = append(all, strings.TrimSpace(string(raw)))
		// A Google key file: its texts, one by one.
		fields := map[string]any{}
		if json.Unmarshal(raw, &fields) == nil {
			for _, name := range []string{"private_key", "client_secret", "refresh_token"} {
				if value, ok := fields[name].(string); ok {
					all = append(all, strings.TrimSpace(value))
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, secret := range all {
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "(secret)")
			text = strings.ReplaceAll(text, url.QueryEscape(secret), "(secret)")
		}
	}
	text = queried.ReplaceAllStringFunc(text, func(address string) string {
		where, _, _ := strings.Cut(address, "?")
		if s.own != "" && strings.HasPrefix(where, s.own) {
			return address
		}
		return where + "?(secret)"
	})
	return inHeader.ReplaceAllString(text, "$1 (secret)")
}

// clean hides secrets in an error's text; what it wraps stays.
func (s secrets) clean(err error) error {
	was := err.Error()
	if text := s.hide(was); text != was {
		return &cleaned{text, err}
	}
	return err
}

type cleaned struct {
	text string
	err  error
}

func (e *cleaned) Error() string { return e.text }
func (e *cleaned) Unwrap() error { return e.err }
