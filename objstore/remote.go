package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// within is what of a bucket or container a store holds.
type within struct {
	prefix string // "" or ends in a slash
	only   string // the single object the store holds, "" for all below prefix
}

func newWithin(key string) within {
	var w within
	key = strings.Trim(key, "/")
	if isDataFile(key) {
		key, w.only = path.Split(key)
		key = strings.Trim(key, "/")
	}
	if key != "" {
		w.prefix = key + "/"
	}
	return w
}

// ask returns the prefix to list the whole bucket by, or false where no key of the
// store can match.
func (w within) ask(prefix string) (string, bool) {
	if w.only == "" {
		return w.prefix + prefix, true
	}
	return w.prefix + w.only, strings.HasPrefix(w.only, prefix)
}

// key returns a listed name as a key of the store. False is a folder's placeholder,
// or a name that only starts like the single object's.
func (w within) key(name string) (string, bool) {
	key := strings.TrimPrefix(name, w.prefix)
	return key, key != "" && !strings.HasSuffix(key, "/") && (w.only == "" || key == w.only)
}

func cleanTag(tag string) string { return strings.Trim(tag, `"`) }

// remote is what a service adds to make a store's reads.
type remote interface {
	url(key string) string

	// openAt asks once for an object from an offset in bytes on, which with a
	// non-empty etag must be that one. The Object's size is that of what follows.
	openAt(ctx context.Context, key, etag string, offset int64) (io.ReadCloser, Object, error)
}

func openPinned(ctx context.Context, r remote, key, etag string, offset int64) (io.ReadCloser, Object, error) {
	body, obj, err := r.openAt(ctx, key, etag, offset)
	if err != nil {
		return nil, Object{}, err
	}
	// Some servers ignore If-Match, so the answer's own tag is compared too.
	if etag != "" && obj.ETag != "" && obj.ETag != etag {
		body.Close()
		return nil, Object{}, fmt.Errorf("objstore: %s: %w", r.url(key), ErrChanged)
	}
	return body, obj, nil
}

func getRemote(ctx context.Context, r remote, key, etag string) (io.ReadCloser, Object, error) {
	if err := checkKey(key); err != nil {
		return nil, Object{}, err
	}
	body, obj, err := openPinned(ctx, r, key, etag, 0)
	if err != nil {
		return nil, Object{}, err
	}
	return &resumed{ctx: ctx, remote: r, object: obj, body: body}, obj, nil
}

// resumed continues a body that broke off, from where it broke and pinned to the
// same version. The SDKs retry requests but not bodies, and a month of bills is
// minutes of one body.
type resumed struct {
	ctx    context.Context
	remote remote
	object Object
	body   io.ReadCloser
	offset int64
	breaks int
}

const maxBreaks = 5

func (r *resumed) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		switch {
		case err == nil:
			r.breaks = 0
			return n, nil
		case err == io.EOF && r.offset >= r.object.Size:
			return n, io.EOF
		case r.offset >= r.object.Size:
			return n, fmt.Errorf("objstore: %s: damaged on the way: %w: %w", r.remote.url(r.object.Key), err, ErrChanged)
		case r.ctx.Err() != nil:
			return n, r.ctx.Err()
		}
		if r.breaks++; r.breaks > maxBreaks {
			return n, fmt.Errorf("objstore: %s broke off at byte %d of %d, %d times in a row: %w",
				r.remote.url(r.object.Key), r.offset, r.object.Size, maxBreaks, ErrChanged)
		}
		r.body.Close()
		body, _, openErr := openPinned(r.ctx, r.remote, r.object.Key, r.object.ETag, r.offset)
		if openErr != nil {
			return n, openErr
		}
		r.body = body
		if n > 0 {
			return n, nil
		}
	}
}

func (r *resumed) Close() error { return r.body.Close() }

func fetchRemote(ctx context.Context, r remote, key, etag string) (File, error) {
	body, obj, err := getRemote(ctx, r, key, etag)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	tmp, err := spool(body)
	if err != nil {
		return nil, fmt.Errorf("objstore: fetch %s: %w", r.url(key), err)
	}
	return &tempFile{File: tmp, object: obj}, nil
}

// spool copies a stream to an unnamed-as-possible temporary file, rewound.
func spool(r io.Reader) (*os.File, error) {
	tmp, err := os.CreateTemp("", "gpuledger-*")
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(tmp, r); err == nil {
		_, err = tmp.Seek(0, io.SeekStart)
	}
	if err != nil {
		tmp.Close()
		os.Remove(tmp.Name())
		return nil, err
	}
	return tmp, nil
}

// rewindable gives a body that a request can send again, from a temporary file where
// the source cannot be read twice. Call done when it is sent.
func rewindable(ctx context.Context, body io.Reader) (whole io.ReadSeeker, done func(), err error) {
	if seeker, ok := body.(io.ReadSeeker); ok {
		return seeker, func() {}, nil
	}
	tmp, err := spool(ctxReader{ctx, body})
	if err != nil {
		return nil, nil, err
	}
	return tmp, func() { tmp.Close(); os.Remove(tmp.Name()) }, nil
}

type tempFile struct {
	*os.File
	object Object
}

func (f *tempFile) Object() Object { return f.object }

func (f *tempFile) Close() error {
	return errors.Join(f.File.Close(), os.Remove(f.Name()))
}
