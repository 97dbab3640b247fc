package table

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"

	"gpuledger/billing"
	"gpuledger/objstore"
)

// openZip opens the one CSV file in a zip archive.
func openZip(ctx context.Context, store objstore.Store, file billing.File, opt Options) (source, error) {
	f, err := store.Fetch(ctx, file.Key, file.ETag)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (source, error) { return nil, errors.Join(err, f.Close()) }
	if got := f.Object().Size; file.Size > 0 && got != file.Size {
		return fail(sizeError(file.Key, got, file.Size))
	}
	z, err := zip.NewReader(f, f.Object().Size)
	if err != nil {
		return fail(fmt.Errorf("%s: %w: not a whole zip file (%w)", file.Key, billing.ErrIncomplete, err))
	}
	if len(z.File) != 1 {
		return fail(fmt.Errorf("%s: the zip file holds %d files, not one", file.Key, len(z.File)))
	}
	member, err := z.File[0].Open()
	if err != nil {
		return fail(fmt.Errorf("%s: %w", file.Key, err))
	}
	src, err := newCSV(zipErrors{member}, opt)
	if err != nil {
		return fail(errors.Join(err, member.Close()))
	}
	src.body = closers{member, f}
	return src, nil
}

// zipErrors marks a member that is damaged as incomplete.
type zipErrors struct{ r io.Reader }

func (z zipErrors) Read(p []byte) (int, error) {
	n, err := z.r.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: the zip file is truncated or damaged (%w)", billing.ErrIncomplete, err)
	}
	return n, err
}

// closers closes several things.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, x := range c {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}
