package warehouse

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// splitWindow gives every line of a window away by what its node was held by.
func (a *allocation) splitWindow(d *dayWork, w *windowWork, occ *occupancies) ([]row, error) {
	if cutsHour(w.span) {
		if err := a.noteCost("the bill's window begins or ends within an hour, whose use is taken as spread evenly over it", w); err != nil {
			return nil, err
		}
	}
	if a.needsOrder() {
		for _, hour := range a.inputHours(w) {
			if h, _ := d.hours.at(w.node, hour); h != nil && h.old {
				a.note("hours were read by a version that did not keep when within them a node was ready and pods lived, and count from their start; read them again with: gpuledger ingest samples --period "+hour.Format("2006-01"), w.node.name, period.Hour(hour))
			}
		}
	}
	var out []row
	timed := a.timed(w.lines)
	for _, currency := range currencies(w.lines) {
		win := a.window(d, w, occ, currency)
		v, err := d.split.Compute(win, nil)
		if err != nil {
			return nil, err
		}
		for _, f := range v.Findings {
			a.note(f, w.node.name, w.span)
		}
		for i, l := range w.lines {
			if l.currency != currency {
				continue
			}
			rows, err := a.splitLine(d, w, occ, v, timed, i, win.Devices())
			if err != nil {
				return nil, err
			}
			out = append(out, rows...)
		}
	}
	return out, nil
}

// needsOrder reports whether the policy asks for the order of things within an hour.
func (a *allocation) needsOrder() bool {
	return a.o.Policy.Idle.Lookback() > 0 || a.o.Policy.ComponentSplit != policy.GPUAll
}

// currencies are those of a window's lines, in order. Who shares a remainder of pool or
// cluster scope is charged in the same.
func currencies(lines []*line) []string {
	var out []string
	for _, l := range lines {
		if !slices.Contains(out, l.currency) {
			out = append(out, l.currency)
		}
	}
	slices.Sort(out)
	return out
}

// splitLine gives line i of a window away.
func (a *allocation) splitLine(d *dayWork, w *windowWork, occ *occupancies, v *allocate.Vectors, timed timedLines, i, devices int) ([]row, error) {
	l := w.lines[i]
	shares, err := a.sharesOf(v, l)
	if err != nil {
		return nil, err
	}
	hours := "0"
	switch {
	case !a.hasDevices(l):
	case l.billedUS != nil:
		hours = deviceHours(l.quantity, devices)
	case !timed.weights[i].IsZero():
		hours = deviceHours(spanHours(w.span), devices)
	}
	if a.o.Policy.ComponentSplit == policy.PriceDifference && l.component == string(billing.Node) && !l.listed() {
		a.note("source "+l.source+" has lines without a list cost; component_split stays gpu_all for them", w.node.name, w.span)
	}
	out := make([]row, len(shares))
	for k, s := range shares {
		r := row{line: l, component: component(l, s), node: a.named(w.node, s.Node), pod: d.pod(occ, s.PodUID), share: s, deviceHours: hours}
		if r.used, err = timed.part(i, s.UsedByteSeconds); err == nil {
			r.held, err = timed.part(i, s.HeldByteSeconds)
		}
		if err != nil {
			return nil, err
		}
		out[k] = r
	}
	return out, nil
}

// sharesOf returns the shares of one line of a window.
func (a *allocation) sharesOf(v *allocate.Vectors, l *line) ([]allocate.Share, error) {
	return v.Of(billing.Component(l.component), l.listed())
}

// loadUses reads what pods requested of their nodes, pods without a GPU included, and
// returns the pods' ids.
func (o *occupancies) loadUses(ctx context.Context, tx pgx.Tx, nodeHours []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, `SELECT node_hour_id, pod_id, life_us, cpu_milli, memory_bytes, gpus, coalesce(start_us, 0), coalesce(cpu_used_milli, 0), coalesce(memory_used_bytes, 0)
		FROM gpuledger.pod_hour WHERE node_hour_id = ANY ($1)`, nodeHours)
	if err != nil {
		return nil, err
	}
	var ids []int64
	var nodeHour, pod int64
	var u gpu.PodUse
	_, err = pgx.ForEachRow(rows, []any{&nodeHour, &pod, &u.LifeMicros, &u.CPUMilli, &u.Memory, &u.GPUs, &u.StartMicros, &u.CPUUsedMilli, &u.MemoryUsed}, func() error {
		u.PodUID = podToken(pod)
		o.uses[nodeHour] = append(o.uses[nodeHour], u)
		ids = append(ids, pod)
		return nil
	})
	return ids, err
}

// component is what a row's share is of: a divided line's part, else what the line is.
func component(l *line, s allocate.Share) string {
	if s.Component != "" {
		return string(s.Component)
	}
	return l.component
}

// listed reports whether the line states what it would cost at list prices.
func (l *line) listed() bool {
	a, err := money.Parse(l.list)
	return err == nil && a.Sign() != 0
}

// hasDevices reports whether a line pays for device time: all do, unless the policy
// takes a provider's CPU and memory lines for what they are.
func (a *allocation) hasDevices(l *line) bool {
	own := allocate.OwnComponent(&a.o.Policy, billing.Component(l.component))
	return own != billing.CPU && own != billing.Memory
}

// listCost adds up what the lines that price the whole node cost at list prices, and
// the instance time they bill; the window's own length where none says.
func listCost(w *windowWork, currency string) (money.Amount, int64) {
	var cost money.Amount
	var micros int64
	hours := anyBilled(w.lines)
	for _, l := range w.lines {
		if l.component != string(billing.Node) || l.currency != currency || hours && (l.billedUS == nil || *l.billedUS <= 0) {
			continue
		}
		list, err := money.Parse(l.list)
		if err != nil || list.Sign() <= 0 {
			continue
		}
		cost = cost.Add(list)
		if hours {
			micros += *l.billedUS
		} else {
			micros = w.span.Micros()
		}
	}
	return cost, micros
}

func anyBilled(lines []*line) bool {
	for _, l := range lines {
		if l.billedUS != nil {
			return true
		}
	}
	return false
}

// spanHours is a window's length in hours with six decimals.
func spanHours(s period.Span) string {
	n := s.Micros() / 3_600 // a millionth of an hour is 3,600 µs
	return fmt.Sprintf("%d.%06d", n/1_000_000, n%1_000_000)
}

// timedLines shares a window's time and byte-seconds out over those of its lines that
// pay for devices, so that they are counted once however many lines there are: those that
// were billed first, for a correction changes what time costs, not how it was used.
type timedLines struct {
	weights []money.Weight
	first   int // the line that takes all of it where none says how long it bills
}

func (a *allocation) timed(lines []*line) timedLines {
	t := timedLines{weights: make([]money.Weight, len(lines)), first: -1}
	var since time.Time // the first billing period
	for _, l := range lines {
		if a.hasDevices(l) && (since.IsZero() || l.billingPeriod.Before(since)) {
			since = l.billingPeriod
		}
	}
	billed := false
	for i, l := range lines {
		if !a.hasDevices(l) || l.billingPeriod.After(since) {
			continue
		}
		if t.first < 0 {
			t.first = i
		}
		if l.billedUS != nil {
			billed = true
			t.weights[i] = money.W(uint64(max(0, *l.billedUS)))
		}
	}
	if !billed && t.first >= 0 {
		t.weights[t.first] = money.W(1)
	}
	return t
}

// part is line i's part of a figure of the window.
func (t timedLines) part(i int, figure int64) (int64, error) {
	if t.first < 0 || figure == 0 {
		return 0, nil
	}
	parts, err := money.Apportion(figure, t.weights)
	if err == money.ErrNoWeight {
		if i == t.first {
			return figure, nil
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parts[i], nil
}

// gibBytes reads an instance type's memory, "30.5" GiB, in bytes.
func gibBytes(gib string) int64 {
	a, err := money.Parse(gib)
	if err != nil {
		return 0 // the table is part of the binary and read by a test
	}
	n := new(big.Int).Lsh(a.Big(), 30)
	return n.Quo(n, money.FromInt(1).Big()).Int64()
}

// finding is a defect of the input that many windows may share.
type finding struct {
	windows int
	node    string
	at      time.Time
	cost    map[string]money.Amount // effective cost by currency, where it is told
}

// cutsHour reports whether a window does not begin and end at whole hours.
func cutsHour(span period.Span) bool {
	return !span.Start.Truncate(time.Hour).Equal(span.Start) || !span.End.Truncate(time.Hour).Equal(span.End)
}

// noteCost keeps a finding with the effective cost of the window's lines (DESIGN §4.4).
func (a *allocation) noteCost(text string, w *windowWork) error {
	a.note(text, w.node.name, w.span)
	a.noting.Lock()
	defer a.noting.Unlock()
	f := a.findings[text]
	if f.cost == nil {
		f.cost = map[string]money.Amount{}
	}
	for _, l := range w.lines {
		cost, err := money.Parse(l.effective)
		if err != nil {
			return err
		}
		f.cost[l.currency] = f.cost[l.currency].Add(cost)
	}
	return nil
}

// note keeps a finding; what is said of many windows is said once.
func (a *allocation) note(text, node string, span period.Span) {
	a.noting.Lock()
	defer a.noting.Unlock()
	if a.findings == nil {
		a.findings = map[string]*finding{}
	}
	f := a.findings[text]
	if f == nil {
		f = &finding{node: node, at: span.Start}
		a.findings[text] = f
	}
	f.windows++
	if span.Start.Before(f.at) || span.Start.Equal(f.at) && node < f.node { // the first, whichever day was computed first
		f.at, f.node = span.Start, node
	}
}

// warn says the findings, in the order of their texts.
func (a *allocation) warn() {
	texts := make([]string, 0, len(a.findings))
	for t := range a.findings {
		texts = append(texts, t)
	}
	sort.Strings(texts)
	for _, t := range texts {
		f := a.findings[t]
		cost := ""
		for _, c := range slices.Sorted(maps.Keys(f.cost)) {
			cost += fmt.Sprintf(", %s %s", f.cost[c], c)
		}
		a.o.Warn("%s (%d lines or windows%s, the first on node %s at %s)", t, f.windows, cost, f.node, f.at.UTC().Format(time.RFC3339))
	}
}
