package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"gpuledger/billing"
	"gpuledger/billing/aws"
	"gpuledger/billing/azure"
	"gpuledger/billing/focus"
	"gpuledger/billing/gcp"
	"gpuledger/billing/oci"
	"gpuledger/billing/period"
	"gpuledger/objstore"
	"gpuledger/warehouse"
)

// BillConfig is one bill source.
type BillConfig struct {
	Name     string   `yaml:"name"`
	Type     string   `yaml:"type"`     // aws | azure | gcp | oci | focus | ratecard
	Location string   `yaml:"location"` // s3://bucket/prefix, https://account.blob.core.windows.net/container/prefix, or a folder
	Nulls    []string `yaml:"nulls"`    // focus: texts that mean "no value"
	Currency string   `yaml:"currency"` // focus, azure: for files without a currency
	File     string   `yaml:"file"`     // ratecard: the card

	// gcp, in the place of location: the export in BigQuery.
	Table    string         `yaml:"table"`     // project.dataset.table
	Project  string         `yaml:"project"`   // runs the queries and pays for them; empty: the table's
	Services []string       `yaml:"services"`  // service.id of those read line by line; empty: Compute Engine, or all where scope has filters; "*": all
	From     string         `yaml:"from"`      // the first invoice month to read, such as 2026-01; empty: the first there is
	Reread   model.Duration `yaml:"reread"`    // how long before the last look new rows may have been exported; empty: 10d
	MaxBytes ByteSize       `yaml:"max_bytes"` // how much one query may read, such as 200GiB; empty: 1TiB
	Endpoint string         `yaml:"endpoint"`  // another address of BigQuery's API, such as a private one
}

// ByteSize is a number of bytes, as 200GiB or 1TB.
type ByteSize int64

var byteSize = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([kMGTP]?)(i?)B$`)

// UnmarshalText reads 200GiB.
func (b *ByteSize) UnmarshalText(text []byte) error {
	m := byteSize.FindStringSubmatch(string(text))
	if m == nil {
		return fmt.Errorf("%q is not a size such as 200GiB", text)
	}
	n, _ := new(big.Rat).SetString(m[1])
	base := int64(1000)
	if m[3] != "" {
		base = 1024
	}
	for range strings.Index("kMGTP", m[2]) + min(1, len(m[2])) {
		n.Mul(n, new(big.Rat).SetInt64(base))
	}
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if !whole.IsInt64() || whole.Sign() <= 0 {
		return fmt.Errorf("%q is no size that a query may read", text)
	}
	*b = ByteSize(whole.Int64())
	return nil
}

// defaultReread is how long before the last look rows may have been exported that come to
// light only now.
const defaultReread = 10 * 24 * time.Hour

// validateBills checks what needs no service.
func (c *Config) validateBills() error {
	seen := map[string]bool{}
	for i, b := range c.Bills {
		if b.Name == "" {
			return fmt.Errorf("bills: entry %d has no name", i+1)
		}
		if seen[b.Name] {
			return fmt.Errorf("bills: %s is there twice", b.Name)
		}
		seen[b.Name] = true
		if err := b.validate(); err != nil {
			return fmt.Errorf("bills: %s: %w", b.Name, err)
		}
	}
	return nil
}

func (b *BillConfig) validate() error {
	switch b.Type {
	case "ratecard":
		if b.File == "" {
			return fmt.Errorf("file is missing: the card of rates")
		}
		return nil
	case "gcp":
		switch {
		case b.Table == "" && b.Location == "":
			return fmt.Errorf("table is missing: project.dataset.table of the export, or location of files of its rows")
		case b.Table != "" && b.Location != "":
			return fmt.Errorf("both table and location: the month would count twice")
		case b.From != "":
			if _, err := period.ParseMonth(b.From); err != nil {
				return fmt.Errorf("from: %w", err)
			}
		}
		return nil
	case "aws", "azure", "oci", "focus":
	default:
		return fmt.Errorf("type %q is not aws, azure, gcp, oci, focus or ratecard", b.Type)
	}
	if b.Location == "" {
		return fmt.Errorf("location is missing")
	}
	return nil
}

// where is a source's place, for messages.
func (b *BillConfig) where() string {
	switch {
	case b.Table != "":
		return b.Table
	case b.Location != "":
		return objstore.Public(b.Location)
	}
	return b.File
}

// reader opens a bill source. A rate card prices what the warehouse knows of nodes; without
// one (db nil) it can't be read. looked is when the source was last looked at whole, zero
// for never.
func (c *Config) reader(ctx context.Context, b BillConfig, db *warehouse.DB, looked time.Time, log *slog.Logger) (billing.Reader, error) {
	switch {
	case b.Type == "ratecard":
		return c.rateCard(b, db)
	case b.Table != "":
		return c.bigQuery(ctx, b, looked, log)
	}
	store, err := objstore.Open(ctx, c.path(b.Location))
	if err != nil {
		return nil, fmt.Errorf("bills: %s: %w", b.Name, err)
	}
	switch b.Type {
	case "aws":
		return aws.New(store, b.Name), nil
	case "azure":
		return azure.New(store, b.Name, azure.Options{Currency: b.Currency}), nil
	case "gcp":
		return gcp.Files(store, b.Name), nil
	case "oci":
		return oci.New(store, b.Name), nil
	}
	return focus.New(store, b.Name, focus.Options{Nulls: b.Nulls, Currency: b.Currency}), nil
}

func (c *Config) bigQuery(ctx context.Context, b BillConfig, looked time.Time, log *slog.Logger) (billing.Reader, error) {
	opt := gcp.Options{Table: b.Table, Project: b.Project, Services: b.Services, MaxBytes: int64(b.MaxBytes), Endpoint: b.Endpoint, Log: log}
	if len(opt.Services) == 0 {
		if opt.Services = nil; len(c.Scope.Filters) > 0 { // a filter may match a line of any service
			opt.Services = []string{"*"}
		}
	}
	if b.From != "" {
		var err error
		if opt.From, err = period.ParseMonth(b.From); err != nil {
			return nil, err
		}
	}
	reread := time.Duration(b.Reread)
	if reread == 0 {
		reread = defaultReread
	}
	if !looked.IsZero() {
		opt.Since = looked.Add(-reread)
	}
	return gcp.BigQuery(ctx, b.Name, opt)
}
