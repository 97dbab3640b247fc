// Package blobtest is an Azure Blob Storage in the test's process, of the requests that
// objstore makes. It checks the signature of every request by the rules of the service,
// not by the SDK's code.
package blobtest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// What every server accepts. The characters of Key and of SAS's signature are ones
// that must be escaped in an address.
const (
	Account = "billing"
	Key     = "c2VjcmV0K2tleS9vZitiaWxsaW5nPz4+Pw=="
	SAS     = "sv=2025-11-05&sr=c&sp=rlcw&se=2999-12-31T00%3A00%3A00Z&sig=c2VjcmV0%2BL3NpZ25hdHVyZQ%3D%3D"
	Bearer  = "secret.bearer.token"
)

// Secrets are the texts of which no message may hold any.
var Secrets = []string{Key, "c2VjcmV0%2BL3NpZ25hdHVyZQ%3D%3D", "c2VjcmV0+L3NpZ25hdHVyZQ==", "c2VjcmV0", "sig=", Bearer}

// Blob is what a container holds under one name.
type Blob struct {
	Content  []byte
	Encoding string            // Content-Encoding as it was stored
	Metadata map[string]string // of which hdi_isfolder marks a folder
	Type     string            // file or directory where namespaces are hierarchical, else empty
	ETag     string            // quoted; made by Add
	Modified time.Time         // made by Add
}

// Server is one storage account.
type Server struct {
	URL      string       // the blob endpoint, with the account as its path
	Client   *http.Client // trusts the server
	PageSize int          // blobs in a page of a listing

	mu    sync.Mutex
	fault func(http.ResponseWriter, *http.Request) bool
	blobs map[string]map[string]Blob // by container and name
	count map[string]int
	tags  int
}

// New serves the account over plain http, with empty containers of the given names,
// until the test ends. It sets the environment in which objstore finds the server and
// its key, and takes out what a developer's own login would add.
func New(t testing.TB, containers ...string) *Server {
	t.Helper()
	s := newServer(t, containers)
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	s.found(t, ts)
	return s
}

// NewTLS does the same over https, which an Azure identity needs. Client is to be used.
func NewTLS(t testing.TB, containers ...string) *Server {
	t.Helper()
	s := newServer(t, containers)
	ts := httptest.NewTLSServer(s)
	t.Cleanup(ts.Close)
	s.found(t, ts)
	return s
}

func newServer(t testing.TB, containers []string) *Server {
	s := &Server{PageSize: 5000, blobs: map[string]map[string]Blob{}, count: map[string]int{}}
	for _, c := range containers {
		s.blobs[c] = map[string]Blob{}
	}
	for _, name := range []string{
		"AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
		"AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST", "AZURE_TOKEN_CREDENTIALS", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT",
	} {
		t.Setenv(name, "")                        // puts it back at the end
		if err := os.Unsetenv(name); err != nil { // for some, empty is not absent
			t.Fatal(err)
		}
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", Account)
	t.Setenv("AZURE_STORAGE_KEY", Key)
	return s
}

func (s *Server) found(t testing.TB, ts *httptest.Server) {
	s.URL, s.Client = ts.URL+"/"+Account, ts.Client()
	t.Setenv("AZURE_STORAGE_BLOB_ENDPOINT", s.URL)
}

// Fault lets f answer requests: those for which it returns true.
func (s *Server) Fault(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Count says how many requests of a kind there were that no fault answered: "list",
// "get", "put", and by their signature "key", "sas", "bearer".
func (s *Server) Count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[kind]
}

// Add puts a blob into a container, which it makes where there is none.
func (s *Server) Add(container, name string, b Blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(container, name, b)
}

func (s *Server) add(container, name string, b Blob) Blob {
	s.tags++
	b.ETag, b.Modified = fmt.Sprintf(`"0x8DE%012X"`, s.tags), time.Date(2026, 11, 3, 4, 5, 6, 0, time.UTC)
	if s.blobs[container] == nil {
		s.blobs[container] = map[string]Blob{}
	}
	s.blobs[container][name] = b
	return b
}

// Error answers as the service does, with what a careless error would repeat: the
// request's address and how it was signed. An SDK that tries again does so at once.
func Error(w http.ResponseWriter, r *http.Request, status int, code string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("x-ms-error-code", code)
	w.Header().Set("x-ms-retry-after-ms", "1")
	w.WriteHeader(status)
	fmt.Fprintf(w, "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>%s</Code><Message><![CDATA[as asked: %s %s]]></Message></Error>",
		code, r.URL, r.Header.Get("Authorization"))
	return true
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	how, status, code := signedBy(r)
	if code != "" {
		Error(w, r, status, code)
		return
	}
	s.count[how]++
	if r.Header.Get("x-ms-version") == "" {
		Error(w, r, http.StatusBadRequest, "MissingRequiredHeader")
		return
	}
	container, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"+Account+"/"), "/")
	if s.blobs[container] == nil {
		Error(w, r, http.StatusNotFound, "ContainerNotFound")
		return
	}
	q := r.URL.Query()
	switch comp := q.Get("comp"); {
	case r.Method == http.MethodGet && q.Get("restype") == "container" && comp == "list":
		s.list(w, r, container)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && comp == "":
		s.get(w, r, container, name)
	case r.Method == http.MethodPut && comp == "":
		s.put(w, r, container, name)
	default:
		Error(w, r, http.StatusNotImplemented, "NotImplemented")
	}
}
