package warehouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
	"gpuledger/policy"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func migrateTemplate(ctx context.Context, dsn string) error {
	db, err := Open(ctx, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Migrate(ctx)
	return err
}

func testDB(t *testing.T) *DB {
	t.Helper()
	db, err := Open(t.Context(), pgtest.New(t, migrateTemplate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func (db *DB) text(t *testing.T, query string, args ...any) string {
	t.Helper()
	tab, err := db.Query(t.Context(), query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var rows []string
	for _, r := range tab.Rows {
		var cells []string
		for _, c := range r {
			cells = append(cells, c.Text)
		}
		rows = append(rows, strings.Join(cells, "|"))
	}
	return strings.Join(rows, "\n")
}

func (db *DB) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := db.pool.Exec(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// The hand-written COPY encoding against pgx's own for the same values.
func TestCopyEncoding(t *testing.T) {
	db := testDB(t)
	numbers := []string{"0", "1", "-1", "0.1", "10000", "9999", "12345678.9", "0.00001", "0.000000000000000000000001", "-170000000000000", "100000000", "0.0000000181", "1000000000000.000000000000000000000001", "-0.5000"}
	r := rand.New(rand.NewSource(1))
	for range 300 {
		numbers = append(numbers, fmt.Sprintf("%d.%0*d", r.Int63n(1<<40)-1<<39, 1+r.Intn(20), r.Int63n(10)))
	}
	db.exec(t, "CREATE TABLE a (i int, b bool, n numeric, x text, t timestamptz, d date, j jsonb, k bigint[], y bytea, f float8)")
	db.exec(t, "CREATE TABLE b (LIKE a)")
	c := newCopyRows()
	for i, n := range numbers {
		at := time.Date(1999+i%60, 3, 1+i%28, 5, 6, 7, 123000, time.UTC)
		text := fmt.Sprintf("line %d\t\"\\\n é", i)
		db.exec(t, "INSERT INTO a VALUES ($1, $2, $3::text::numeric, $4, $5, $6, $7, $8, $9, $10)", i, i%2 == 0, n, text, at, at.Truncate(24*time.Hour), map[string]string{"k": text}, []int64{1, -int64(i)}, []byte(text), float64(i)/3)
		c.row(10)
		c.int4(int32(i))
		c.bool(i%2 == 0)
		c.numeric(n)
		c.text(text)
		c.timestamp(at)
		c.date(at.Truncate(24 * time.Hour))
		c.jsonb([]byte(fmt.Sprintf(`{"k": "line %d\t\"\\\n é"}`, i)))
		c.int8s([]int64{1, -int64(i)})
		c.bytea([]byte(text))
		c.float8(float64(i) / 3)
	}
	err := pgx.BeginFunc(t.Context(), db.pool, func(tx pgx.Tx) error { return c.copyTo(t.Context(), tx, "b", "i, b, n, x, t, d, j, k, y, f") })
	if err != nil {
		t.Fatal(err)
	}
	if got := db.text(t, "SELECT count(*) FROM a JOIN b USING (i) WHERE (a.b, a.n, a.x, a.t, a.d, a.j, a.k, a.y, a.f) = (b.b, b.n, b.x, b.t, b.d, b.j, b.k, b.y, b.f) AND a.n::text = b.n::text"); got != fmt.Sprint(len(numbers)) {
		t.Errorf("%s of %d rows agree", got, len(numbers))
		t.Log(db.text(t, "SELECT a.n, b.n FROM a JOIN b USING (i) WHERE a.n::text <> b.n::text"))
	}
}

func TestMigrateDownAndUp(t *testing.T) {
	db, ctx := testDB(t), t.Context()
	schema := func() string {
		return db.text(t, "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns WHERE table_schema IN ('gpuledger', 'finance') ORDER BY 1, 2, ordinal_position")
	}
	before := schema()
	all, err := db.MigrationStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range all {
		if _, err := db.MigrateDown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := schema(); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
	if err := db.CheckSchema(ctx); err == nil || !strings.Contains(err.Error(), "gpuledger migrate up") {
		t.Errorf("pending migrations: %v", err)
	}
	if _, err := db.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	if schema() != before {
		t.Error("up after down gives another schema")
	}
	if applied, err := db.Migrate(ctx); err != nil || len(applied) != 0 {
		t.Errorf("a second up applied %v, %v", applied, err)
	}
}

// Reset empties a database that another version of the program made, which Migrate
// could not bring up to date.
func TestResetOfAnotherVersion(t *testing.T) {
	db, err := Open(t.Context(), pgtest.New(t, migrateTemplate))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{"DROP SCHEMA finance CASCADE", "ALTER TABLE gpuledger.allocation DROP COLUMN node_pool"} {
		if _, err := db.pool.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Migrate(t.Context()); err == nil {
		t.Fatal("the database is not of another version")
	}
	if err := db.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := db.pool.Exec(t.Context(), "SELECT node_pool FROM finance.allocation"); err != nil {
		t.Error(err)
	}
}

// Several programs that start at once migrate one after the other.
func TestMigrateTogether(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.New(t, migrateTemplate)
	var dbs []*DB // each program has connections of its own
	for range 4 {
		db, err := Open(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		dbs = append(dbs, db)
	}
	for range 2 {
		if _, err := dbs[0].MigrateDown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, len(dbs))
	for _, db := range dbs {
		go func() {
			_, err := db.Migrate(ctx)
			errs <- err
		}()
	}
	for range dbs {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// memoryReader serves lines from memory.
type memoryReader struct {
	lines []billing.Line
	err   error // after the lines
}

func (m *memoryReader) Deliveries(context.Context) ([]billing.Delivery, error) { return nil, nil }

func (m *memoryReader) Read(_ context.Context, _ billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	for i := range m.lines {
		l := m.lines[i]
		if err := fn(&l, keep(&l)); err != nil {
			return err
		}
	}
	return m.err
}

var month, _ = period.ParseMonth("2026-10")

func gpuLine(instance string, hour int, cost string) billing.Line {
	start := month.Start().Add(time.Duration(hour) * time.Hour)
	a := money.MustParse(cost)
	return billing.Line{
		Provider: "AWS", BillingPeriod: month, ChargePeriod: period.Span{Start: start, End: start.Add(time.Hour)}, Class: billing.NodeUsage, Component: billing.Node,
		ChargeCategory: "Usage", ChargeType: "Usage", PayerAccount: "1", UsageAccount: "2", ResourceID: instance, InstanceID: instance, InstanceType: "g5.xlarge", Service: "AmazonEC2",
		Costs: billing.Costs{Billed: a, Effective: a, List: money.Some(a)}, Currency: "USD", ConsumedQuantity: money.Some(money.FromInt(1)), ConsumedUnit: "Hrs",
	}
}

func otherLine(cost string) billing.Line {
	l := gpuLine("", 0, cost)
	l.Class, l.InstanceType, l.Service = billing.Other, "", "AmazonS3"
	return l
}

func load(t *testing.T, db *DB, token byte, r *memoryReader) (BillResult, error) {
	t.Helper()
	d := billing.Delivery{Format: "test", BillingPeriod: month, Token: [32]byte{token}}
	return db.LoadDelivery(t.Context(), BillLoad{Source: "aws", Kind: "aws", Scope: &billing.Scope{GPUType: gpu.IsGPUInstanceType, GPUFamily: gpu.IsGPUFamily}}, d, r)
}

func allocateTest(t *testing.T, db *DB) RunResult {
	t.Helper()
	p, err := policy.Parse("policy", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := db.Allocate(t.Context(), AllocateOptions{Period: month, Policy: p, Owners: policy.NoOwners(), By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// A restated month: lines vanish, come, repeat and stay; order does not matter; what
// does not change keeps its rows.
func TestDeliveriesSupersede(t *testing.T) {
	db := testDB(t)
	first := []billing.Line{gpuLine("i-1", 0, "1.5"), gpuLine("i-1", 1, "1.5"), gpuLine("i-2", 30, "2"), gpuLine("i-2", 30, "2"), otherLine("7")}
	if res, err := load(t, db, 1, &memoryReader{lines: first}); err != nil || !res.Changed || res.New != 4 {
		t.Fatalf("%+v %v", res, err)
	}
	run1 := allocateTest(t, db)
	if res, err := load(t, db, 1, &memoryReader{err: errors.New("must not be read")}); err != nil || res.Changed {
		t.Fatalf("the same token was read again: %+v %v", res, err)
	}
	shuffled := []billing.Line{first[4], first[3], first[1], first[2], first[0]}
	if res, err := load(t, db, 2, &memoryReader{lines: shuffled}); err != nil || res.Changed {
		t.Fatalf("another order is no change: %+v %v", res, err)
	}
	if again := allocateTest(t, db); !again.Unchanged || again.RunID != run1.RunID {
		t.Fatalf("%+v", again)
	}
	second := []billing.Line{gpuLine("i-1", 0, "1.5"), gpuLine("i-1", 1, "1.25"), gpuLine("i-2", 30, "2"), otherLine("8")}
	if res, err := load(t, db, 3, &memoryReader{lines: second}); err != nil || !res.Changed || res.New != 1 || res.Gone != 2 {
		t.Fatalf("%+v %v", res, err)
	}
	run2 := allocateTest(t, db)
	if run2.Unchanged || run2.NewUnits != 2 {
		t.Errorf("%+v", run2)
	}
	if got := db.text(t, "SELECT bill_billed, out_of_scope_billed, trim_scale(remainder_billed), trim_scale(difference_billed), lines FROM finance.reconciliation"); got != "12.75|8|4.75|0|4" {
		t.Errorf("reconciliation %s", got)
	}
	if got := db.text(t, "SELECT count(*), count(last_delivery) FROM gpuledger.bill_line"); got != "5|2" {
		t.Errorf("lines %s", got)
	}
	// Back to the first: the units of the first run are found again, nothing is computed.
	if _, err := load(t, db, 4, &memoryReader{lines: first}); err != nil {
		t.Fatal(err)
	}
	if run3 := allocateTest(t, db); run3.Unchanged || run3.NewUnits != 0 {
		t.Errorf("%+v", run3)
	}
	if _, problems, err := db.Reconcile(t.Context(), month); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// Whatever breaks half-way, nothing of the delivery is there, and the one before
// stays current.
func TestBrokenDeliveryChangesNothing(t *testing.T) {
	db := testDB(t)
	if _, err := load(t, db, 1, &memoryReader{lines: []billing.Line{gpuLine("i-1", 0, "1")}}); err != nil {
		t.Fatal(err)
	}
	before := db.text(t, "SELECT * FROM gpuledger.bill_line") + db.text(t, "SELECT * FROM gpuledger.bill_delivery") + db.text(t, "SELECT * FROM gpuledger.bill_control")
	broken := &billing.RowError{File: "a.csv", Row: 3, Column: "BilledCost", Err: errors.New("not a number")}
	var many []billing.Line
	for i := range 5000 {
		many = append(many, gpuLine(fmt.Sprintf("i-%d", i), i%700, "2"))
	}
	for name, r := range map[string]*memoryReader{
		"a broken row":      {lines: many, err: broken},
		"a truncated file":  {lines: many[:10], err: fmt.Errorf("x.gz: %w", billing.ErrIncomplete)},
		"an empty delivery": {},
		"an error at once":  {err: errors.New("boom")},
		"text Postgres hates": {lines: []billing.Line{func() billing.Line {
			l := gpuLine("i-9", 0, "1")
			l.Currency = ""
			l.ChargePeriod = period.Span{}
			return l
		}()}, err: errors.New("late")},
	} {
		_, err := load(t, db, 9, r)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if r.err != nil && !errors.Is(err, r.err) {
			t.Errorf("%s: %v, want %v", name, err, r.err)
		}
		if after := db.text(t, "SELECT * FROM gpuledger.bill_line") + db.text(t, "SELECT * FROM gpuledger.bill_delivery") + db.text(t, "SELECT * FROM gpuledger.bill_control"); after != before {
			t.Errorf("%s left something behind", name)
		}
	}
}

// Names with NUL bytes and broken UTF-8 do not stop a load.
func TestUnstorableText(t *testing.T) {
	db := testDB(t)
	l := gpuLine("i-1", 0, "1")
	l.Description, l.Tags = "a\x00b\xff", map[string]string{"k\x00": "v\xfe"}
	if _, err := load(t, db, 1, &memoryReader{lines: []billing.Line{l}}); err != nil {
		t.Fatal(err)
	}
	if got := db.text(t, "SELECT description, tags FROM gpuledger.bill_line"); got != "ab\uFFFD|{\"k\": \"v\uFFFD\"}" {
		t.Errorf("%q", got)
	}
}

// A fact that somebody changed is found by reconcile.
func TestReconcileFindsTampering(t *testing.T) {
	for _, tamper := range []string{
		"UPDATE gpuledger.allocation SET ratio = ratio - 1 WHERE line_id = (SELECT min(line_id) FROM gpuledger.allocation)",
		"UPDATE gpuledger.allocation SET gpu_ratio = gpu_ratio - 1 WHERE line_id = (SELECT min(line_id) FROM gpuledger.allocation)",
		"DELETE FROM gpuledger.allocation WHERE line_id = (SELECT min(line_id) FROM gpuledger.allocation)",
		"UPDATE gpuledger.bill_line SET effective_cost = effective_cost + 1",
		"UPDATE gpuledger.workload_day SET effective_cost = effective_cost + 1",
		"UPDATE gpuledger.bill_control SET billed_cost = billed_cost + 0.000000000000000000000001",
	} {
		db := testDB(t)
		if _, err := load(t, db, 1, &memoryReader{lines: []billing.Line{gpuLine("i-1", 0, "1"), gpuLine("i-1", 40, "3"), otherLine("2")}}); err != nil {
			t.Fatal(err)
		}
		allocateTest(t, db)
		if _, problems, err := db.Reconcile(t.Context(), month); err != nil || len(problems) != 0 {
			t.Fatalf("before: %v %v", problems, err)
		}
		db.exec(t, tamper)
		if _, problems, err := db.Reconcile(t.Context(), month); err != nil || len(problems) == 0 {
			t.Errorf("%s: not found (%v)", tamper, err)
		}
	}
}

// Two jobs at the same work: one does it, the other says so.
func TestLocks(t *testing.T) {
	db := testDB(t)
	err := db.Locked(t.Context(), 0, []string{"b", "a"}, func() error {
		if err := db.Locked(t.Context(), 0, []string{"a"}, func() error { return nil }); !errors.Is(err, ErrLocked) {
			t.Errorf("taken lock: %v", err)
		}
		return db.Locked(t.Context(), 0, []string{"c"}, func() error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Locked(t.Context(), 0, []string{"a"}, func() error { return nil }); err != nil {
		t.Errorf("freed lock: %v", err)
	}
}

func TestUnreachableDatabase(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := Open(ctx, "postgres://someone:verysecret@127.0.0.1:1/x")
	if err == nil || strings.Contains(err.Error(), "verysecret") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
	_, err = Open(ctx, "postgres://someone:verysecret@[bad/x")
	if err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("%v", err)
	}
}

// An hour read again with less measured time is refused with the figure, unless
// allowed; the same hour writes nothing.
func TestRereadMayNotLose(t *testing.T) {
	db := testDB(t)
	hour := month.Start()
	at := func(measured int64) []gpu.ClusterHour {
		inv := gpu.NewInventory(nil, gpu.Settings{}, period.Hour(hour))
		return []gpu.ClusterHour{{Hour: hour, CoveredMicros: 3_600_000_000, Inventory: inv, Nodes: []gpu.NodeHour{{Node: "n1", Hour: hour, ReadyMicros: 3_600_000_000, Devices: []gpu.Device{{
			UUID: "GPU-1", Model: "L4", GPUUtil: -1, EngineActive: 0.5, Partitions: []gpu.Partition{{MemorySlices: 1, DeviceSlices: 1, Mode: gpu.ModeUnknown, PresentMicros: 3_600_000_000, MeasuredMicros: measured, Rows: []gpu.Row{
				{Category: gpu.Unallocated, Method: gpu.NoMethod, MeasuredMicros: measured, Shares: gpu.Shares{Used: 3_600_000_000, RequestNone: 3_600_000_000, RequestReplica: 3_600_000_000, MaxNone: 3_600_000_000, MaxReplica: 3_600_000_000}},
			}}},
		}}}}}}
	}
	load := SampleLoad{Cluster: "c", ClusterName: "c", Span: period.Hour(hour), Driver: "test", Started: time.Now()}
	if res, err := db.SaveHours(t.Context(), load, at(3_600_000_000)); err != nil || res.Changed != 2 {
		t.Fatalf("%+v %v", res, err)
	}
	before := db.text(t, "SELECT * FROM gpuledger.node_hour") + db.text(t, "SELECT * FROM gpuledger.occupancy") + db.text(t, "SELECT * FROM gpuledger.sample_load")
	if res, err := db.SaveHours(t.Context(), load, at(3_600_000_000)); err != nil || res.Changed != 0 {
		t.Fatalf("%+v %v", res, err)
	}
	if res, err := db.SaveHours(t.Context(), load, at(1_000_000)); err != nil || res.Less == nil || !strings.Contains(res.Less.Error(), "3600.0 device-seconds stored, 1.0 read now") {
		t.Fatalf("%+v %v", res, err)
	}
	if after := db.text(t, "SELECT * FROM gpuledger.node_hour") + db.text(t, "SELECT * FROM gpuledger.occupancy") + db.text(t, "SELECT * FROM gpuledger.sample_load"); after != before {
		t.Error("a refused re-read wrote something")
	}
	load.AllowLess = true
	if res, err := db.SaveHours(t.Context(), load, at(1_000_000)); err != nil || res.Changed != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	if got := db.text(t, "SELECT count(*), count(superseded_by) FROM gpuledger.node_hour"); got != "2|1" {
		t.Errorf("versions %s", got)
	}
}

func TestLineRowWidth(t *testing.T) {
	c := newCopyRows()
	l := gpuLine("i-1", 0, "1")
	lineRow(c, &l, l.Key())
	if got, want := int(c.buf[len(copyHeader)])<<8|int(c.buf[len(copyHeader)+1]), strings.Count(lineColumns, ",")+1; got != want || !bytes.Contains(c.buf, []byte("AmazonEC2")) {
		t.Errorf("a row has %d fields for %d columns", got, want)
	}
}
