// Package openmetrics reads samples from text files with timestamps: OpenMetrics
// (seconds, ends with "# EOF") or the Prometheus text format (milliseconds),
// plain, gzip or zstd, such as promtool tsdb dump-openmetrics writes.
package openmetrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// Config says which files make up the source.
type Config struct {
	// Paths are files or globs (filepath.Match). Each must match a file.
	Paths []string
	// Metrics names what will be asked for, so that one pass over the files
	// decodes it all. A metric that is not named costs one more pass when asked for.
	Metrics []string
}

// Source is an ingest.Source over text files. The files are read at first use
// and must not change after that. It keeps the metrics asked for, compactly, and
// may be used by several goroutines.
type Source struct {
	cfg Config

	mu        sync.Mutex // guards all below; a load holds it
	files     []file
	loaded    map[string]bool      // metrics decoded so far
	byMetric  map[string][]*series // immutable once in here
	scanned   bool                 // oldest, newest and samples are known
	oldest    int64
	newest    int64
	samples   int64
	conflicts int64
}

var _ ingest.Source = (*Source)(nil)

type file struct {
	path    string
	size    int64
	changed time.Time
}

// New returns a source over the files of cfg. It reads nothing yet.
func New(cfg Config) (*Source, error) {
	if len(cfg.Paths) == 0 {
		return nil, errors.New("openmetrics: no path given")
	}
	for _, p := range cfg.Paths {
		if _, err := filepath.Match(p, ""); err != nil {
			return nil, fmt.Errorf("openmetrics: path %q: %w", p, err)
		}
	}
	return &Source{cfg: cfg, loaded: map[string]bool{}, byMetric: map[string][]*series{}}, nil
}

// Select implements ingest.Source. The error of a bad file names file and line.
func (s *Source) Select(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	if err := s.load(ctx, sel.Metrics); err != nil {
		return err
	}
	// A time between milliseconds: the samples at or after it start at the next one.
	start, end := ceilMilli(span.Start), ceilMilli(span.End)
	asked := map[string]bool{}
	for _, metric := range sel.Metrics {
		if asked[metric] {
			continue
		}
		asked[metric] = true
		s.mu.Lock()
		list := s.byMetric[metric]
		s.mu.Unlock()
		for _, x := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !matches(x.labels, sel) {
				continue
			}
			if samples := x.between(start, end); samples != nil {
				if err := fn(gpu.Series{Metric: x.metric, Labels: maps.Clone(x.labels), Samples: samples}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func ceilMilli(t time.Time) int64 {
	m := t.UnixMilli()
	if t.After(time.UnixMilli(m)) {
		m++
	}
	return m
}

// matches treats an absent label as empty, as Prometheus does.
func matches(labels map[string]string, sel ingest.Selector) bool {
	for name, value := range sel.Equal {
		if labels[name] != value {
			return false
		}
	}
	for name, values := range sel.OneOf {
		if !slices.Contains(values, labels[name]) {
			return false
		}
	}
	return true
}

// List implements ingest.Source.
func (s *Source) List(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	return s.Select(ctx, sel, span, func(x gpu.Series) error {
		x.Samples = nil
		return fn(x)
	})
}

// Describe implements ingest.Source. It reads the files if nothing did before.
func (s *Source) Describe(ctx context.Context) (ingest.Description, error) {
	if err := s.load(ctx, nil); err != nil {
		return ingest.Description{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := ingest.Description{Driver: "openmetrics", Detail: fmt.Sprintf("%d files with %d samples", len(s.files), s.samples)}
	if s.conflicts > 0 {
		d.Detail += fmt.Sprintf("; %d samples disagree with an earlier one of the same series and time and were left out", s.conflicts)
	}
	if s.samples > 0 {
		d.Oldest, d.Newest = time.UnixMilli(s.oldest).UTC(), time.UnixMilli(s.newest).UTC()
	}
	return d, nil
}

// Conflicts counts the samples left out because an earlier one of the same
// series and time has another value.
func (s *Source) Conflicts() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// load decodes the metrics that are not yet, in one pass over all files.
func (s *Source) load(ctx context.Context, metrics []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]bool{}
	for _, m := range slices.Concat(metrics, s.cfg.Metrics) {
		if !s.loaded[m] {
			wanted[m] = true
		}
	}
	if len(wanted) == 0 && s.scanned {
		return nil
	}
	if err := s.checkFiles(); err != nil {
		return err
	}
	parsers := make([]*fileParser, len(s.files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range s.files {
		g.Go(func() error {
			p := newFileParser(wanted)
			if err := readFile(gctx, f, p); err != nil {
				return fmt.Errorf("openmetrics: %s: %w", f.path, err)
			}
			p.byText = nil
			for _, x := range p.list {
				x.text, x.next = nil, nil
			}
			parsers[i] = p
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	s.merge(wanted, parsers)
	return nil
}

// merge joins the files' series in the order of the files.
func (s *Source) merge(wanted map[string]bool, parsers []*fileParser) {
	byKey := map[string]*series{}
	var list []*series
	s.samples, s.oldest, s.newest = 0, math.MaxInt64, math.MinInt64
	for i, p := range parsers {
		s.samples += p.samples
		s.oldest, s.newest = min(s.oldest, p.minMilli), max(s.newest, p.maxMilli)
		for _, x := range p.list {
			if len(x.blocks) == 0 {
				continue // only NaN
			}
			key := seriesKey(x.metric, x.labels)
			if have := byKey[key]; have != nil {
				have.join(x)
				continue
			}
			byKey[key] = x
			list = append(list, x)
		}
		parsers[i] = nil
	}
	for _, x := range list {
		s.conflicts += int64(x.order())
		s.byMetric[x.metric] = append(s.byMetric[x.metric], x)
	}
	for m := range wanted {
		s.loaded[m] = true
	}
	s.scanned = true
}

// checkFiles finds the files, once, and later makes sure they are the same: two
// passes over different data would not fit together.
func (s *Source) checkFiles() error {
	if s.files == nil {
		files, err := findFiles(s.cfg.Paths)
		s.files = files
		return err
	}
	for _, f := range s.files {
		fi, err := os.Stat(f.path)
		if err != nil {
			return fmt.Errorf("openmetrics: %w", err)
		}
		if fi.Size() != f.size || !fi.ModTime().Equal(f.changed) {
			return fmt.Errorf("openmetrics: %s has changed while in use: start again", f.path)
		}
	}
	return nil
}

func findFiles(patterns []string) ([]file, error) {
	paths := map[string]bool{}
	for _, pattern := range patterns {
		found := []string{pattern} // a plain path may hold a bracket
		if _, err := os.Lstat(pattern); err != nil {
			if found, err = filepath.Glob(pattern); err != nil {
				return nil, fmt.Errorf("openmetrics: path %q: %w", pattern, err)
			}
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("openmetrics: no file matches %s", pattern)
		}
		for _, p := range found {
			paths[filepath.Clean(p)] = true
		}
	}
	var files []file
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		fi, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("openmetrics: %w", err)
		}
		if fi.IsDir() {
			return nil, fmt.Errorf("openmetrics: %s is a folder: name its files, such as %s", p, filepath.Join(p, "*.om.gz"))
		}
		files = append(files, file{p, fi.Size(), fi.ModTime()})
	}
	return files, nil
}

// maxWindow bounds what a zstd file may ask for to be decompressed: zstd --long=27.
const maxWindow = 128 << 20

func readFile(ctx context.Context, f file, p *fileParser) error {
	in, err := os.Open(f.path)
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err // the caller names the file
		}
		return err
	}
	defer in.Close()
	br := bufio.NewReaderSize(in, 1<<18)
	var r io.Reader = br
	// Told by its first bytes: names lie.
	magic, _ := br.Peek(4)
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		zr, err := gzip.NewReader(br)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		r = zr
	case string(magic) == "\x28\xb5\x2f\xfd":
		zr, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		defer zr.Close()
		r = zr
	case len(magic) > 0:
		for end, kind := range map[string]string{".gz": "gzip", ".zst": "zstd"} {
			if strings.HasSuffix(f.path, end) {
				return fmt.Errorf("its name ends in %s, but it is not %s", end, kind)
			}
		}
	}
	err = p.read(r, ctx.Err)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the compressed file is cut short", err)
	}
	return err
}
