package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// row is one allocation row before its dimensions have database ids.
type row struct {
	line        *line
	component   string // of the share, where the line is divided; else of the line
	node        *node  // nil for a line on no node
	pod         storedPod
	share       allocate.Share
	deviceHours string
	used, held  int64
}

// hoursAtOnce bounds the node-hours whose telemetry is in memory at once.
const hoursAtOnce = 256

// compute splits every window of a unit and gives every loose line to its category. It
// passes the rows on window by window, in an order that the inputs decide.
func (a *allocation) compute(ctx context.Context, tx pgx.Tx, d *dayWork, u *unitWork, emit func(context.Context, []row) error) error {
	for rest := u.windows; len(rest) > 0; {
		n, hours := 0, 0
		for n < len(rest) && (n == 0 || hours < hoursAtOnce) {
			hours += len(a.inputHours(rest[n]))
			n++
		}
		if err := a.computeWindows(ctx, tx, d, rest[:n], emit); err != nil {
			return err
		}
		rest = rest[n:]
	}
	for _, l := range u.loose {
		rows, err := a.whole(l)
		if err != nil {
			return err
		}
		if err := emit(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

func (a *allocation) computeWindows(ctx context.Context, tx pgx.Tx, d *dayWork, windows []*windowWork, emit func(context.Context, []row) error) error {
	occ, err := a.occupancyOf(ctx, tx, d, windows)
	if err != nil {
		return err
	}
	for _, w := range windows {
		rows, err := a.splitWindow(d, w, occ)
		if err != nil {
			return fmt.Errorf("node %s, %s: %w", w.node.name, w.span, err)
		}
		if err := emit(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

func (a *allocation) occupancyOf(ctx context.Context, tx pgx.Tx, d *dayWork, windows []*windowWork) (*occupancies, error) {
	var ids []int64
	span := period.Span{Start: d.day, End: d.day}
	for _, w := range windows {
		if w.span.End.After(span.End) {
			span.End = w.span.End
		}
		for _, hour := range a.inputHours(w) {
			if h, _ := d.hours.at(w.node, hour); h != nil {
				ids = append(ids, h.id)
				if hour.Before(span.Start) {
					span.Start = hour
				}
			}
		}
	}
	if len(ids) == 0 {
		return noOccupancies(), nil
	}
	slices.Sort(ids)
	return loadOccupancy(ctx, tx, slices.Compact(ids), span, a.o.Policy.ComponentSplit != policy.GPUAll || a.o.Policy.Idle.Lookback() > 0)
}

// inputHours are the hours that a window is computed from.
func (a *allocation) inputHours(w *windowWork) []time.Time {
	return append(a.hoursBefore(w), w.span.Hours()...)
}

// window builds the pure split's input.
func (a *allocation) window(d *dayWork, w *windowWork, occ *occupancies, currency string) allocate.Window {
	win := allocate.Window{Span: w.span, Pods: occ.owned, Node: nodeInfo(w.node, w.lines), Currency: currency}
	win.Around = d.around[keyAround(w.node, w.span, win.Currency)]
	for _, l := range w.lines {
		if l.billedUS != nil && a.hasDevices(l) {
			win.BilledMicros += *l.billedUS
		}
	}
	win.ListCost, win.ListMicros = listCost(w, currency)
	for _, start := range a.hoursBefore(w) {
		win.Before = append(win.Before, storedHourOf(d, w, occ, start))
	}
	for _, start := range w.span.Hours() {
		win.Hours = append(win.Hours, storedHourOf(d, w, occ, start))
	}
	return win
}

// hoursBefore are those before a window that a rule looks back to.
func (a *allocation) hoursBefore(w *windowWork) []time.Time {
	lookback := a.o.Policy.Idle.Lookback()
	if lookback == 0 {
		return nil
	}
	first := w.span.Start.Truncate(time.Hour)
	return period.Span{Start: first.Add(-lookback).Truncate(time.Hour), End: first}.Hours()
}

func storedHourOf(d *dayWork, w *windowWork, occ *occupancies, start time.Time) allocate.Hour {
	stored, covered := d.hours.at(w.node, start)
	h := allocate.Hour{Start: start, CoveredMicros: covered}
	if stored != nil {
		h.Seen = true
		h.NodeHour = gpu.NodeHour{
			Node: stored.node.name, Pool: stored.pool, Hour: start, ReadyMicros: stored.readyMicros, UncoveredMicros: stored.unknownMicros, Devices: occ.devices[stored.id],
			ReadyStartMicros: stored.readyStart, ReadyEndMicros: stored.readyEnd,
			CPUMilli: stored.cpuMilli, MemoryBytes: stored.memoryBytes, Pods: occ.uses[stored.id],
		}
	}
	return h
}

// nodeInfo says what the bill and the inventory know of a node. The bill's instance
// type counts its devices; the inventory's stands in where the bill is silent.
func nodeInfo(n *node, lines []*line) allocate.Node {
	info := allocate.Node{Cluster: n.clusterName(lines[0].span.Start), Pool: n.poolAt(lines[0].span.Start), Account: lines[0].account}
	types := make([]string, 0, len(lines)+1)
	for _, l := range lines {
		types = append(types, l.instanceType)
	}
	for _, name := range append(types, n.typeAt(lines[0].span.Start)) {
		if t, ok := gpu.LookupInstanceType(name); ok {
			info.ExpectedGPUs, info.ExpectedModel = t.GPUs, t.Model
			info.InstanceType, info.CPUMilli, info.MemoryBytes = t.Name, int64(t.VCPU)*1_000, gibBytes(t.MemoryGiB)
			break
		}
	}
	return info
}

// whole gives a line that no node's pods can pay to a category: its own class, or
// no_telemetry for a GPU machine that no cluster shows.
func (a *allocation) whole(l *line) ([]row, error) {
	r := row{line: l, component: l.component, deviceHours: "0"}
	loose := allocate.Loose{Category: allocate.CategoryOf(billing.Class(l.class)), Account: l.account, At: l.span.Start, Devices: a.hasDevices(l)}
	t, isGPU := gpu.LookupInstanceType(l.instanceType)
	if isGPU && loose.Devices {
		loose.Model = t.Model
	}
	if l.class == string(billing.NodeUsage) {
		loose.Category = string(gpu.NoTelemetry)
		if loose.Devices {
			loose.Mode = gpu.ModeUnknown
			if l.billedUS != nil {
				r.deviceHours = deviceHours(l.quantity, max(1, t.GPUs))
			}
		}
		if r.node = a.nodes.nearest(l); r.node != nil {
			loose.Pool, loose.Cluster = r.node.poolAt(l.span.Start), r.node.clusterName(l.span.Start)
		}
	}
	shares, err := loose.Shares(&a.o.Policy, &a.o.Owners)
	rows := make([]row, len(shares))
	for i, s := range shares {
		rows[i] = r
		rows[i].share = s
	}
	return rows, err
}

// nearest is match without its error, for lines that are not split.
func (ix *nodeIndex) nearest(l *line) *node {
	n, err := ix.match(l)
	if err != nil {
		return nil
	}
	return n
}

// named returns the node by one of the names its machine had.
func (a *allocation) named(n *node, name string) *node {
	if name == "" || name == n.name {
		return n
	}
	for _, o := range a.nodes.names(n) {
		if o.name == name {
			return o
		}
	}
	return n
}

// key identifies a row by meaning: its line's content and its target.
func (r *row) key() string {
	return strings.Join([]string{
		r.line.source, fmt.Sprintf("%x", r.line.key), strconv.Itoa(int(r.line.ordinal)), r.component, r.share.PodUID, r.share.Category, r.share.MovedBy,
		r.share.Model, string(r.share.Mode), r.share.Pool, r.share.Node, r.share.OwnerKey(),
	}, "\x01")
}

// id is the row's stable id, derived from its key.
func (r *row) id() [16]byte {
	h := sha256.Sum256([]byte(r.key()))
	return [16]byte(h[:16])
}

// output takes a unit's rows as they come, with their number and a hash of what they
// say. Their order is that of the inputs.
type output struct {
	rows  int64
	hash  hash.Hash
	buf   []byte
	write func(context.Context, []row, [][16]byte) error // nil: only counted
}

func newOutput(write func(context.Context, []row, [][16]byte) error) *output {
	return &output{hash: sha256.New(), write: write}
}

func (o *output) add(ctx context.Context, rows []row) error {
	ids := make([][16]byte, len(rows))
	for i := range rows {
		r := &rows[i]
		ids[i] = r.id()
		o.buf = append(o.buf[:0], ids[i][:]...)
		for _, n := range []int64{int64(r.share.Ratio), int64(r.share.GPURatio), r.used, r.held, int64(r.share.Method)} {
			o.buf = binary.BigEndian.AppendUint64(o.buf, uint64(n))
		}
		o.buf = append(o.buf, r.deviceHours...)
		o.buf = append(o.buf, '\n')
		_, _ = o.hash.Write(o.buf)
	}
	o.rows += int64(len(rows))
	if o.write == nil {
		return nil
	}
	return o.write(ctx, rows, ids)
}

func (o *output) sum() [32]byte { return [32]byte(o.hash.Sum(nil)) }

// methodRatios lists the row's ratio by rung, rung 1 first.
func methodRatios(s allocate.Share) []int64 {
	out := make([]int64, gpu.NoMethod)
	for m := range out {
		out[m] = int64(s.ByMethod[m+1])
	}
	return out
}

// ledgerDims caches the ids of owners and models within one allocation.
type ledgerDims struct {
	mu     sync.Mutex
	owners map[string]int32
	models map[string]int32
}

func newLedgerDims() *ledgerDims {
	return &ledgerDims{owners: map[string]int32{}, models: map[string]int32{}}
}

// dimIDs are the ids of a row's owner and model.
type dimIDs struct{ owner, model int32 }

// resolve returns the ids of every row's owner and model. Owners new to the warehouse
// are written outside the unit's transaction: they are harmless alone.
func (d *ledgerDims) resolve(ctx context.Context, db *DB, rows []row) ([]dimIDs, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.add(ctx, db, rows); err != nil {
		return nil, err
	}
	out := make([]dimIDs, len(rows))
	for i := range rows {
		s := &rows[i].share
		out[i] = dimIDs{d.owners[s.OwnerKey()], d.models[s.Model]}
	}
	return out, nil
}

func (d *ledgerDims) add(ctx context.Context, db *DB, rows []row) error {
	owners := map[string]policy.Owner{}
	models := map[string]bool{}
	for i := range rows {
		s := &rows[i].share
		if _, ok := d.owners[s.OwnerKey()]; !ok {
			owners[s.OwnerKey()] = s.Owner
		}
		if _, ok := d.models[s.Model]; !ok {
			models[s.Model] = true
		}
	}
	if len(owners) == 0 && len(models) == 0 {
		return nil
	}
	ids, newModels := map[string]int32{}, map[string]int32{}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		keys := make([]string, 0, len(owners))
		for k := range owners {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			o := owners[k]
			stored := strings.ReplaceAll(k, "\x00", "\x1f") // Postgres text has no NUL
			var id int32
			if err := tx.QueryRow(ctx, `WITH new AS (INSERT INTO gpuledger.owner (key, team, cost_center, attributes) VALUES ($1, nullif($2, ''), nullif($3, ''), $4) ON CONFLICT (key) DO NOTHING RETURNING id)
				SELECT id FROM new UNION ALL SELECT id FROM gpuledger.owner WHERE key = $1 LIMIT 1`, stored, o.Team, o.CostCenter, jsonMap(o.Dimensions)).Scan(&id); err != nil {
				return err
			}
			ids[k] = id
		}
		names := make([]string, 0, len(models))
		for m := range models {
			names = append(names, m)
		}
		var err error
		newModels, err = modelIDs(ctx, tx, names)
		return err
	})
	if err != nil {
		return err // what was rolled back has no ids
	}
	maps.Copy(d.owners, ids)
	maps.Copy(d.models, newModels)
	return nil
}
