package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// dir is a folder, or one file of it.
type dir struct {
	root string
	only string // the single file the store holds, "" for the whole folder
}

func openDir(p string) (Store, error) {
	p = filepath.Clean(p)
	// A mounted folder is often a link, which a walk would not enter. Links to
	// folders below it are not followed.
	if real, err := filepath.EvalSymlinks(p); err == nil {
		p = real
	}
	info, err := os.Stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A place to write to need not exist yet; reading from it finds nothing.
		return &dir{root: p}, nil
	case err != nil:
		return nil, fmt.Errorf("objstore: %w", err)
	case info.IsDir():
		return &dir{root: p}, nil
	}
	return &dir{root: filepath.Dir(p), only: filepath.Base(p)}, nil
}

func (d *dir) Location() string { return filepath.Join(d.root, d.only) }

func (d *dir) List(ctx context.Context, prefix string) ([]Object, error) {
	var out []Object
	err := filepath.WalkDir(d.walkRoot(prefix), func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone between the listing and the look, or never there
			}
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(d.root, p)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(rel)
		if entry.IsDir() || !strings.HasPrefix(key, prefix) || d.only != "" && key != d.only || isTemp(key) {
			return nil
		}
		info, err := os.Stat(p) // follows links, so that linked data files count
		if err != nil || info.IsDir() {
			return nil
		}
		out = append(out, object(key, info))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("objstore: list %s: %w", d.root, err)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

// walkRoot avoids walking the whole folder where the prefix names a subfolder.
func (d *dir) walkRoot(prefix string) string {
	if i := strings.LastIndexByte(prefix, '/'); i > 0 && checkKey(prefix[:i]) == nil {
		return d.path(prefix[:i])
	}
	return d.root
}

func (d *dir) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

// object derives the entity tag from size and time of change: reading every
// file to hash it would cost more than the load that it could avoid.
func object(key string, info fs.FileInfo) Object {
	return Object{
		Key: key, Size: info.Size(), Modified: info.ModTime().UTC(),
		ETag: fmt.Sprintf("%x-%x", info.Size(), info.ModTime().UnixNano()),
	}
}

func (d *dir) open(key, etag string) (*dirFile, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("objstore: %s: %w", d.path(key), ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("objstore: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", d.path(key))
	}
	if err == nil && etag != "" && object(key, info).ETag != etag {
		err = fmt.Errorf("%s: %w", d.path(key), ErrChanged)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("objstore: %w", err)
	}
	return &dirFile{File: f, object: object(key, info)}, nil
}

func (d *dir) Get(_ context.Context, key, etag string) (io.ReadCloser, Object, error) {
	f, err := d.open(key, etag)
	if err != nil {
		return nil, Object{}, err
	}
	return f, f.object, nil
}

func (d *dir) Fetch(_ context.Context, key, etag string) (File, error) {
	f, err := d.open(key, etag)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// dirFile reports a file that was rewritten in place under the reader.
type dirFile struct {
	*os.File
	object Object
}

func (f *dirFile) Object() Object { return f.object }

func (f *dirFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if err == io.EOF {
		if info, statErr := f.Stat(); statErr == nil && object(f.object.Key, info).ETag != f.object.ETag {
			return n, fmt.Errorf("objstore: %s: %w", f.Name(), ErrChanged)
		}
	}
	return n, err
}

const tempMark = ".objstore-"

func isTemp(key string) bool { return strings.HasPrefix(filepath.Base(key), tempMark) }

// Put writes beside the target and renames, so that a crash leaves the old file.
func (d *dir) Put(ctx context.Context, key string, body io.Reader) (err error) {
	if err := checkKey(key); err != nil {
		return err
	}
	target := d.path(key)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("objstore: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(target), tempMark+"*")
	if err != nil {
		return fmt.Errorf("objstore: %w", err)
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
			err = fmt.Errorf("objstore: write %s: %w", target, err)
		}
	}()
	if _, err := io.Copy(tmp, ctxReader{ctx, body}); err != nil {
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), target)
}

// ctxReader ends a long copy when the context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
