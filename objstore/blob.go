package objstore

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// blobStore is a container of Azure Blob Storage and a prefix. Retries of a request
// are the SDK's own.
type blobStore struct {
	within
	place  blobPlace
	login  blobLogin
	client *container.Client
}

func (s *blobStore) Location() string { return s.place.base() + s.prefix + s.only }

func (s *blobStore) url(key string) string { return s.place.base() + s.prefix + key }

func (s *blobStore) List(ctx context.Context, prefix string) ([]Object, error) {
	full, ok := s.ask(prefix)
	if !ok {
		return nil, nil
	}
	var out []Object
	pages := s.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Prefix: to.Ptr(full), Include: container.ListBlobsInclude{Metadata: true},
	})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s.explain("list", prefix, err)
		}
		if page.Segment == nil {
			continue
		}
		for _, b := range page.Segment.BlobItems {
			if b.Name == nil || b.Properties == nil || isFolder(b) {
				continue
			}
			if key, ok := s.key(*b.Name); ok {
				out = append(out, blobObject(key, b.Properties.ContentLength, b.Properties.ETag, b.Properties.LastModified))
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

// isFolder tells the entries that stand for folders: those of accounts with a
// hierarchical namespace, and the markers that tools leave in others.
func isFolder(b *container.BlobItem) bool {
	if b.Properties.ResourceType != nil && *b.Properties.ResourceType == "directory" {
		return true
	}
	for name, value := range b.Metadata {
		if strings.EqualFold(name, "hdi_isfolder") && value != nil && *value == "true" {
			return true
		}
	}
	return false
}

func blobObject(key string, size *int64, etag *azcore.ETag, modified *time.Time) Object {
	o := Object{Key: key}
	if size != nil {
		o.Size = *size
	}
	if etag != nil {
		o.ETag = cleanTag(string(*etag))
	}
	if modified != nil {
		o.Modified = modified.UTC()
	}
	return o
}

func (s *blobStore) Get(ctx context.Context, key, etag string) (io.ReadCloser, Object, error) {
	return getRemote(ctx, s, key, etag)
}

func (s *blobStore) Fetch(ctx context.Context, key, etag string) (File, error) {
	return fetchRemote(ctx, s, key, etag)
}

func (s *blobStore) openAt(ctx context.Context, key, etag string, offset int64) (io.ReadCloser, Object, error) {
	opt := &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: offset}}
	if etag != "" {
		opt.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{
			IfMatch: to.Ptr(azcore.ETag(`"` + etag + `"`)),
		}}
	}
	out, err := s.client.NewBlobClient(s.prefix+key).DownloadStream(ctx, opt)
	if err != nil {
		return nil, Object{}, s.explain("get", key, err)
	}
	return out.Body, blobObject(key, out.ContentLength, out.ETag, out.LastModified), nil
}

// Put is one request, of up to 5000 MiB. The SDK's UploadStream takes more, in blocks
// from memory that it unmaps when it is cancelled, read or not.
func (s *blobStore) Put(ctx context.Context, key string, body io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	whole, done, err := rewindable(ctx, body)
	if err != nil {
		return fmt.Errorf("objstore: write %s: %w", s.url(key), err)
	}
	defer done()
	if _, err := s.client.NewBlockBlobClient(s.prefix+key).Upload(ctx, streaming.NopCloser(whole), nil); err != nil {
		return s.explain("put", key, err)
	}
	return nil
}
