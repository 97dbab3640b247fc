package objstore

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"gpuledger/internal/blobtest"
)

// What the service refuses is said with the object and what to do, whoever signed, and
// without what signed it.
func TestBlobErrors(t *testing.T) {
	const key, sas = blobBills + "/p", blobBills + "/p?" + blobtest.SAS
	for _, tc := range []struct {
		location string
		status   int
		code     string
		is       error
		says     string
		putSays  string
	}{
		{key, http.StatusPreconditionFailed, "ConditionNotMet", ErrChanged, "", ""},
		{key, http.StatusPreconditionFailed, "LeaseIdMissing", nil, "412 LeaseIdMissing", ""},
		{key, http.StatusNotFound, "BlobNotFound", ErrNotFound, "", ""},
		{sas, http.StatusNotFound, "ContainerNotFound", ErrNotFound, `no container "bills"`, ""},
		{key, http.StatusConflict, "BlobArchived", nil, "archive tier", ""},
		{key, http.StatusForbidden, "AuthorizationFailure", nil, "network rules", `"Storage Blob Data Contributor"`},
		{sas, http.StatusForbidden, "AuthorizationFailure", nil, `"Storage Blob Data Reader"`, "create and write"},
		{sas, http.StatusForbidden, "AuthorizationPermissionMismatch", nil, "allow read and list", "allow create and write"},
		{sas, http.StatusForbidden, "AuthorizationSourceIPMismatch", nil, "other addresses", ""},
		{sas, http.StatusForbidden, "AuthenticationFailed", nil, "expired or is not valid: make a new one; it says that it ends 2999-12-31T00:00:00Z", ""},
		{key, http.StatusForbidden, "AuthenticationFailed", nil, `the key in AZURE_STORAGE_KEY is not one of account "billing"`, ""},
		{key, http.StatusForbidden, "KeyBasedAuthenticationNotPermitted", nil, "use an Azure identity, without AZURE_STORAGE_KEY", ""},
		{key, http.StatusUnauthorized, "NoAuthenticationInformation", nil, "access denied", ""},
		{sas, http.StatusServiceUnavailable, "ServerBusy", nil, "run it again later", ""},
		{sas, http.StatusInternalServerError, "InternalError", nil, "500 InternalError", ""},
		{sas, http.StatusBadRequest, "", nil, "400 Bad Request", ""},
	} {
		srv := blobtest.New(t, "bills")
		s := mustOpen(t, tc.location)
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool { return blobtest.Error(w, r, tc.status, tc.code) })
		_, getErr := get(t, s, "a.csv", "etag")
		_, listErr := s.List(ctx, "a.csv")
		putErr := s.Put(ctx, "a.csv", strings.NewReader("x"))
		for verb, err := range map[string]error{"get": getErr, "list": listErr, "put": putErr} {
			says := tc.says
			if verb == "put" && tc.putSays != "" {
				says = tc.putSays
			}
			if err == nil || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), says) ||
				!strings.HasPrefix(err.Error(), "objstore: "+verb+" "+blobBills+"/p/a.csv: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%d %s: %v", tc.status, tc.code, err)
			}
			if tc.is == nil && (errors.Is(err, ErrNotFound) || errors.Is(err, ErrChanged)) {
				t.Errorf("%d %s may succeed later, says %v", tc.status, tc.code, err)
			}
			if err != nil {
				noSecret(t, err.Error())
			}
		}
	}
}

// An identity's refusals name the role that it lacks.
func TestBlobIdentityErrors(t *testing.T) {
	s := &blobStore{login: blobLogin{token: identity{}}}
	for _, tc := range []struct {
		verb   string
		status int
		code   bloberror.Code
		says   string
	}{
		{"get", http.StatusForbidden, bloberror.AuthorizationPermissionMismatch, `needs the role "Storage Blob Data Reader"`},
		{"put", http.StatusForbidden, bloberror.AuthorizationPermissionMismatch, `needs the role "Storage Blob Data Contributor"`},
		{"list", http.StatusUnauthorized, bloberror.InvalidAuthenticationInfo, "AZURE_TENANT_ID"},
	} {
		if err := s.answer(tc.verb, tc.status, tc.code); !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s %s: %v", tc.verb, tc.code, err)
		}
	}
}

func TestBlobExpiredToken(t *testing.T) {
	blobtest.New(t, "bills")
	s := mustOpen(t, blobBills+"?"+strings.Replace(blobtest.SAS, "2999", "2021", 1))
	if _, err := s.List(ctx, ""); err == nil || !strings.Contains(err.Error(), "expired or is not valid: make a new one; it says that it ends 2021-12-31") {
		t.Errorf("list: %v", err)
	} else {
		noSecret(t, err.Error())
	}
}

func TestBlobWrongKey(t *testing.T) {
	blobtest.New(t, "bills")
	t.Setenv("AZURE_STORAGE_KEY", otherKey)
	if err := mustOpen(t, blobBills).Put(ctx, "a.csv", strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "not one of account") || strings.Contains(err.Error(), otherKey) {
		t.Errorf("put: %v", err)
	}
}

// Turned away twice, then served; the SDK's tries are the only ones.
func TestBlobThrottled(t *testing.T) {
	srv := blobtest.New(t, "bills")
	s := mustOpen(t, blobBills+"/p")
	if err := s.Put(ctx, "a.csv", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	busy := func(times int64) {
		calls.Store(0)
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			return calls.Add(1) <= times && blobtest.Error(w, r, http.StatusServiceUnavailable, "ServerBusy")
		})
	}
	busy(2)
	if got, err := get(t, s, "a.csv", ""); got != "content" || err != nil || calls.Load() != 3 {
		t.Errorf("get: %q, %v, %d requests", got, err, calls.Load())
	}
	again := strings.Repeat("again", 1<<20) // so long that it is still being sent when the answer comes
	busy(2)
	if err := s.Put(ctx, "a.csv", strings.NewReader(again)); err != nil || calls.Load() != 3 {
		t.Errorf("put: %v, %d requests", err, calls.Load())
	}
	if got, err := get(t, s, "a.csv", ""); got != again || err != nil {
		t.Errorf("after a put that was turned away: %d of %d bytes, %v", len(got), len(again), err)
	}
	busy(2)
	if got := keys(t, s, ""); got != "a.csv" || calls.Load() != 3 {
		t.Errorf("list: %q, %d requests", got, calls.Load())
	}
	busy(100)
	if _, err := get(t, s, "a.csv", ""); err == nil || !strings.Contains(err.Error(), "ServerBusy") || calls.Load() != 4 {
		t.Errorf("always busy: %v, %d requests", err, calls.Load())
	}
}

// A body that breaks off goes on from where it broke, pinned to its version: a blob
// that was written meanwhile is not the rest of it.
func TestBlobResumesBody(t *testing.T) {
	srv := blobtest.New(t, "bills")
	s := mustOpen(t, blobBills+"/p")
	content := strings.Repeat("0123456789", 5000)
	put := func() string {
		if err := s.Put(ctx, "a.csv", strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		list, err := s.List(ctx, "")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0].ETag
	}
	tag := put()
	var gets atomic.Int64
	cut := func(then func()) {
		gets.Store(0)
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || r.URL.Query().Has("comp") || gets.Add(1) > 1 {
				return false
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Header().Set("ETag", `"`+tag+`"`)
			io.WriteString(w, content[:12345]) //nolint:errcheck // the fault is the point
			then()
			return true // the server closes the connection: too few bytes
		})
	}
	cut(func() {})
	if got, err := get(t, s, "a.csv", tag); got != content || err != nil || gets.Load() != 2 {
		t.Errorf("%d of %d bytes, %v, %d requests", len(got), len(content), err, gets.Load())
	}
	cut(func() { srv.Add("bills", "p/a.csv", blobtest.Blob{Content: []byte(content)}) })
	if _, err := get(t, s, "a.csv", tag); !errors.Is(err, ErrChanged) {
		t.Errorf("written meanwhile: %v", err)
	}
	tag = put()

	// Every time it breaks at once: it must end, and a fetch leaves nothing.
	srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		return true
	})
	if _, err := get(t, s, "a.csv", tag); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "broke off at byte 0") {
		t.Errorf("always broken: %v", err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	if _, err := s.Fetch(ctx, "a.csv", tag); !errors.Is(err, ErrChanged) {
		t.Errorf("fetch: %v", err)
	}
	if got := keys(t, mustOpen(t, tmp), ""); got != "" {
		t.Errorf("left behind: %s", got)
	}

	// Another version under the same name, from a server that ignores If-Match.
	srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("If-Match")
		w.Header().Set("ETag", `"other"`)
		io.WriteString(w, "x") //nolint:errcheck // likewise
		return true
	})
	if _, err := get(t, s, "a.csv", tag); !errors.Is(err, ErrChanged) {
		t.Errorf("another tag: %v", err)
	}
}

// An account that does not exist is asked for once; a connection that breaks says where
// to, but not with what.
func TestBlobNoAnswer(t *testing.T) {
	blobtest.New(t, "bills")
	t.Setenv("AZURE_STORAGE_BLOB_ENDPOINT", "")
	calls := 0
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		calls++
		return nil, &net.DNSError{Err: "no such host", Name: "billing.blob.core.windows.net", IsNotFound: true}
	}}}
	s, err := openBlob("https", strings.TrimPrefix(blobBills, "https://")+"?"+blobtest.SAS, client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(ctx, ""); err == nil || !strings.Contains(err.Error(), `is "billing" the account's name`) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	} else {
		noSecret(t, err.Error())
	}
	b := s.(*blobStore)
	for _, err := range []error{
		b.explain("get", "a.csv", errors.New("Get \"https://billing/bills/a.csv?"+blobtest.SAS+"\": odd")),
		b.explain("get", "a.csv", loginError{errors.New("POST …\n--------\n" + blobtest.SAS)}),
	} {
		noSecret(t, err.Error())
		if !strings.Contains(err.Error(), "…") {
			t.Error(err)
		}
	}
}
