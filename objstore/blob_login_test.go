package objstore

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"gpuledger/internal/blobtest"
)

const otherKey = "b3RoZXJrZXk="

// The first credential that fits signs: the location's, the environment's in order.
func TestBlobLogins(t *testing.T) {
	whole := "DefaultEndpointsProtocol=https;AccountName=billing;AccountKey=" + blobtest.Key + ";EndpointSuffix=core.windows.net"
	for name, c := range map[string]struct {
		location string
		env      map[string]string
		by       string
	}{
		"account and key":                     {blobBills, nil, "key"},
		"the location's token before the key": {blobBills + "?" + blobtest.SAS, nil, "sas"},
		"connection string before the key":    {blobBills, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": whole, "AZURE_STORAGE_KEY": otherKey}, "key"},
		"connection string of another":        {blobBills, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=elsewhere;AccountKey=" + otherKey}, "key"},
		"connection string with a token":      {blobBills, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=https://billing.blob.core.windows.net/;SharedAccessSignature=" + blobtest.SAS}, "sas"},
		"token":                               {blobBills, map[string]string{"AZURE_STORAGE_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "?" + blobtest.SAS}, "sas"},
		"token without an account":            {blobBills, map[string]string{"AZURE_STORAGE_ACCOUNT": "", "AZURE_STORAGE_SAS_TOKEN": blobtest.SAS}, "sas"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := blobtest.New(t, "bills")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			s := mustOpen(t, c.location)
			if err := s.Put(ctx, "a.csv", strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.List(ctx, ""); err != nil || srv.Count(c.by) != 2 {
				t.Errorf("%d requests by %s, %v", srv.Count(c.by), c.by, err)
			}
		})
	}
}

// An emulator's connection string says where it is.
func TestBlobEmulator(t *testing.T) {
	srv := blobtest.New(t, "bills")
	t.Setenv("AZURE_STORAGE_BLOB_ENDPOINT", "")
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName=billing;AccountKey="+blobtest.Key+";BlobEndpoint="+srv.URL+";")
	if _, err := mustOpen(t, "az://billing/bills").List(ctx, ""); err != nil || srv.Count("key") != 1 {
		t.Errorf("%d requests, %v", srv.Count("key"), err)
	}
}

func TestBadBlobLogins(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		says string
	}{
		"key":                     {map[string]string{"AZURE_STORAGE_KEY": "c2VjcmV0!"}, "AZURE_STORAGE_KEY is not base64"},
		"token":                   {map[string]string{"AZURE_STORAGE_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "c2VjcmV0"}, "AZURE_STORAGE_SAS_TOKEN has no signature"},
		"connection string":       {map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=billing;c2VjcmV0"}, "AZURE_STORAGE_CONNECTION_STRING needs"},
		"endpoint":                {map[string]string{"AZURE_STORAGE_BLOB_ENDPOINT": "127.0.0.1:10000/c2VjcmV0"}, "AZURE_STORAGE_BLOB_ENDPOINT is not of the form"},
		"endpoint with a token":   {map[string]string{"AZURE_STORAGE_BLOB_ENDPOINT": "http://127.0.0.1:1/b?" + blobtest.SAS}, "AZURE_STORAGE_BLOB_ENDPOINT is not of the form"},
		"identity and plain http": {map[string]string{"AZURE_STORAGE_KEY": ""}, "over plain http"},
		"identity":                {map[string]string{"AZURE_STORAGE_KEY": "", "AZURE_TOKEN_CREDENTIALS": "Wish"}, "AZURE_TOKEN_CREDENTIALS"},
	} {
		t.Run(name, func(t *testing.T) {
			blobtest.New(t, "bills")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			_, err := Open(ctx, blobBills+"/x")
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatal(err)
			}
			noSecret(t, err.Error())
		})
	}
}

// A managed identity's token signs requests over https; a login that fails says so,
// and what else could be done.
func TestBlobIdentity(t *testing.T) {
	srv := blobtest.NewTLS(t, "bills")
	t.Setenv("AZURE_STORAGE_KEY", "")
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-IDENTITY-HEADER") != "c2VjcmV0" || r.URL.Query().Get("resource") != "https://storage.azure.com" || r.URL.Query().Has("client_id") {
			http.Error(w, `{"statusCode":400,"message":"no identity is assigned"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"expires_on":"4102444800","resource":"https://storage.azure.com","token_type":"Bearer"}`, blobtest.Bearer)
	}))
	t.Cleanup(login.Close)
	t.Setenv("IDENTITY_ENDPOINT", login.URL)
	t.Setenv("IDENTITY_HEADER", "c2VjcmV0")
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")

	t.Setenv("AZURE_CLIENT_ID", "absent")
	s, err := openBlob("az", "billing/bills", srv.Client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(ctx, ""); err == nil || !strings.Contains(err.Error(), "no Azure identity to log in with") ||
		!strings.Contains(err.Error(), "no identity is assigned") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a login that fails: %v", err)
	} else {
		noSecret(t, err.Error())
	}

	if err := os.Unsetenv("AZURE_CLIENT_ID"); err != nil {
		t.Fatal(err)
	}
	if s, err = openBlob("az", "billing/bills", srv.Client); err != nil {
		t.Fatal(err)
	}
	testStore(t, s)
	if srv.Count("bearer") == 0 || srv.Count("key")+srv.Count("sas") != 0 {
		t.Error("not all signed by the identity")
	}
}
