// Package objstore reads, lists and writes objects in a folder, an S3 bucket or a
// container of Azure Blob Storage, behind one small interface. It is the only package that knows an object
// store's SDK.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"
)

// ErrNotFound is wrapped by every error about an object that is not there.
// ErrChanged is wrapped when an object is no longer the one that was pinned by
// its entity tag, or ended before its size: somebody wrote it meanwhile, and a
// later try may succeed.
var (
	ErrNotFound = errors.New("not found")
	ErrChanged  = errors.New("changed while it was being read")
)

// Object is what a store knows of one object without reading it.
type Object struct {
	Key      string // below the store's location, with slashes
	Size     int64  // bytes
	ETag     string // changes with the content; opaque
	Modified time.Time
}

// Store is one location: a folder, or a bucket or container with a prefix. Keys are relative
// to it and use slashes. Safe for concurrent use.
type Store interface {
	// Location returns where the store is, for messages. It holds no secrets.
	Location() string

	// List returns every object whose key starts with prefix, in ascending order
	// of key, however many pages the service needs. No match is no error.
	List(ctx context.Context, prefix string) ([]Object, error)

	// Get opens an object from its start. With a non-empty etag the object must
	// still be that one, else the error wraps ErrChanged; the check holds for the
	// whole read. An absent object is ErrNotFound.
	Get(ctx context.Context, key, etag string) (io.ReadCloser, Object, error)

	// Fetch opens an object for reads at any offset, pinned like Get. A remote
	// object is copied whole to a temporary file, which Close removes: columnar
	// files are read in hundreds of small pieces, and one transfer is both
	// simpler and sure to be of one version.
	Fetch(ctx context.Context, key, etag string) (File, error)

	// Put writes an object whole: readers see the old one or the new one, never
	// a part. It replaces an existing object.
	Put(ctx context.Context, key string, body io.Reader) error
}

// File is an object open for random access.
type File interface {
	io.ReaderAt
	io.Closer
	Object() Object
}

// Open returns the store at a location: a path, file://path, s3://bucket/prefix, or
// https://account.blob.core.windows.net/container/prefix. A location that ends in the
// name of a data file (.csv, .gz, .parquet, .json) is a store of that one object.
// Nothing is asked of a service yet.
//
// S3 takes its region, endpoint and credentials from the standard AWS environment
// and configuration files; with an endpoint of one's own (AWS_ENDPOINT_URL or
// AWS_ENDPOINT_URL_S3) buckets are addressed by path.
//
// Azure Blob Storage is also written abfss://container@account.dfs.core.windows.net/prefix
// or az://account/container/prefix, and the hosts of the other clouds are known.
// Requests are signed with the first of these that there is:
//
//  1. a SAS token as the location's query (?sv=…&sig=…),
//  2. AZURE_STORAGE_CONNECTION_STRING, if it is for the location's account,
//  3. AZURE_STORAGE_KEY, if AZURE_STORAGE_ACCOUNT is that account,
//  4. AZURE_STORAGE_SAS_TOKEN, unless AZURE_STORAGE_ACCOUNT is another account,
//  5. an Azure identity: service principal, workload or managed identity, or the
//     Azure CLI's login, as azidentity's DefaultAzureCredential finds it.
//
// AZURE_STORAGE_BLOB_ENDPOINT (http://127.0.0.1:10000/account), or BlobEndpoint in
// the connection string, sends the requests for every container there instead, as
// endpoint/container/name: for emulators. Over plain http only keys and SAS tokens
// are sent.
func Open(ctx context.Context, location string) (Store, error) {
	scheme, rest, ok := strings.Cut(location, "://")
	switch {
	case location == "":
		return nil, errors.New("objstore: empty location; give a folder, s3://bucket/prefix or " + blobForms)
	case !ok && Public(location) != location:
		return nil, errors.New("objstore: a location with a SAS token starts with https://")
	case !ok:
		return openDir(location)
	case scheme == "file":
		p, err := url.PathUnescape(rest)
		if err != nil {
			return nil, fmt.Errorf("objstore: location file://…: %w", err)
		}
		return openDir(p)
	case scheme == "s3":
		return openS3(ctx, rest)
	case scheme == "https" || scheme == "abfss" || scheme == "az":
		return openBlob(scheme, rest, blobHTTP())
	}
	return nil, fmt.Errorf("objstore: scheme %q is not supported; use a folder, s3://bucket/prefix or %s", scheme, blobForms)
}

// Public returns a location as it was given without what may be secret: the query of
// an address, which can be a SAS token, and a password. For messages; Open need not
// accept it.
func Public(location string) string {
	scheme, rest, ok := strings.Cut(location, "://")
	if !ok {
		if path, query, _ := strings.Cut(location, "?"); strings.Contains(query, "sig=") {
			return path
		}
		return location
	}
	rest, _, _ = strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 && strings.Contains(host[:i], ":") {
		rest = host[i+1:] + "/" + path
	}
	return scheme + "://" + rest
}

// checkKey refuses keys that would leave the location.
func checkKey(key string) error {
	if key == "" || strings.HasPrefix(key, "/") || path.Clean(key) != key || key == ".." || strings.HasPrefix(key, "../") {
		return fmt.Errorf("objstore: key %q is not a clean path below the location", key)
	}
	return nil
}

// isDataFile tells a location that names one object from one that names a
// folder, without asking the service.
func isDataFile(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".csv", ".gz", ".parquet", ".json", ".ndjson", ".zip":
		return true
	}
	return false
}
