package table

import (
	"context"
	"fmt"
	"io"
	"sort"
	"sync"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/objstore"
)

// Months groups files that no manifest names by the months of their rows. A file is looked
// through once, and once again only when it changed.
type Months struct {
	Options Options
	// Check refuses a file by its columns.
	Check func(has func(col int) bool) error
	// Month tells a row's.
	Month func(rows *Reader) (period.Month, error)

	mu   sync.Mutex
	seen map[string]scan // by key and entity tag
}

// scan is what one look through a file found.
type scan struct {
	header []string
	months []period.Month
}

// Deliveries returns one delivery a month, oldest first, with its files, the columns of the
// first and the time at which the newest was written: all files are what the source has
// delivered, and one of several months is part of each.
func (m *Months) Deliveries(ctx context.Context, store objstore.Store, files []objstore.Object) ([]billing.Delivery, error) {
	months := map[period.Month]*billing.Delivery{}
	for _, o := range files {
		s, err := m.scan(ctx, store, o)
		if err != nil {
			return nil, err
		}
		for _, month := range s.months {
			d := months[month]
			if d == nil {
				d = &billing.Delivery{BillingPeriod: month, Columns: s.header}
				months[month] = d
			}
			d.Files = append(d.Files, billing.File{Key: o.Key, Size: o.Size, ETag: o.ETag})
			if o.Modified.After(d.Submitted) {
				d.Submitted = o.Modified
			}
		}
	}
	out := make([]billing.Delivery, 0, len(months))
	for _, d := range months {
		out = append(out, *d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	return out, nil
}

// scan reads a file's header and the months of its rows.
func (m *Months) scan(ctx context.Context, store objstore.Store, o objstore.Object) (scan, error) {
	id := o.Key + "\x00" + o.ETag
	m.mu.Lock()
	s, ok := m.seen[id]
	m.mu.Unlock()
	if ok {
		return s, nil
	}
	rows, err := Open(ctx, store, billing.File{Key: o.Key, Size: o.Size, ETag: o.ETag}, m.Options)
	if err != nil {
		return s, err
	}
	defer rows.Close()
	if err := m.Check(rows.Has); err != nil {
		return s, fmt.Errorf("%s: %w", o.Key, err)
	}
	s.header = rows.Header()
	seen := map[period.Month]bool{}
	for {
		err := rows.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return s, err
		}
		if rows.Row()%4096 == 0 && ctx.Err() != nil {
			return s, ctx.Err()
		}
		month, err := m.Month(rows)
		if err != nil {
			return s, err
		}
		if !seen[month] {
			seen[month] = true
			s.months = append(s.months, month)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = map[string]scan{}
	}
	m.seen[id] = s
	return s, nil
}
