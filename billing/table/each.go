package table

import (
	"context"
	"fmt"
	"io"

	"gpuledger/billing"
)

// Each passes the lines that a decoder makes of the rows to fn, with whether keep wants
// them, as billing.Reader.Read has it. Decode makes a line of the current row, nil of one
// that is no line; tagErr is what was wrong with its tags, once LoadTags was called. Rows
// is how many there must be, below 0 where nobody counted them.
func (r *Reader) Each(ctx context.Context, rows int64, decode func() (*billing.Line, error), tagErr func() error, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	for {
		switch err := r.Next(); {
		case err == io.EOF:
			if rows >= 0 && r.row != rows {
				return fmt.Errorf("%s: %w: the file has %d rows and the manifest says %d", r.key, billing.ErrIncomplete, r.row, rows)
			}
			return nil
		case err != nil:
			return err
		}
		if r.row%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		line, err := decode()
		if err != nil {
			return err
		}
		if line == nil {
			continue
		}
		kept := keep(line)
		if kept && line.LoadTags != nil {
			line.LoadTags()
		}
		line.LoadTags = nil
		if err := tagErr(); err != nil {
			return err
		}
		if err := fn(line, kept); err != nil {
			return err
		}
	}
}
