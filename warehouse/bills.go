package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing"
	"gpuledger/billing/period"
)

// BillResult says what loading a delivery did.
type BillResult struct {
	Changed   bool // false: what is stored already says the same
	Lines     int64
	KeptLines int64
	New, Gone int64 // lines that came and went against the delivery before
	Months    []period.Month
	Notes     []string
}

// lineColumns are the columns of the staging table, in the order lineRow writes.
const lineColumns = `key, charge_month, resource_sha256, provider, payer, account, resource_id, instance_id, instance_type, region, zone, service, sku, usage_type, operation,
	class, component, charge_start, charge_end, billed_us, instance_hours, charge_category, charge_class, charge_type, description, currency,
	billed_cost, effective_cost, list_cost, contracted_cost, consumed_quantity, consumed_unit, pricing_quantity, pricing_unit, list_unit_price, contracted_unit_price,
	pricing_currency, exchange_rate, commitment, reservation, invoice_id, invoice_detail_id, invoice_issuer, tags, by_base`

const createStage = `CREATE TEMP TABLE stage_line (
	key bytea, charge_month date, resource_sha256 bytea, provider text, payer text, account text, resource_id text, instance_id text, instance_type text,
	region text, zone text, service text, sku text, usage_type text, operation text,
	class text, component text, charge_start timestamptz, charge_end timestamptz, billed_us bigint, instance_hours numeric, charge_category text, charge_class text, charge_type text,
	description text, currency text, billed_cost numeric, effective_cost numeric, list_cost numeric, contracted_cost numeric,
	consumed_quantity numeric, consumed_unit text, pricing_quantity numeric, pricing_unit text, list_unit_price numeric, contracted_unit_price numeric,
	pricing_currency text, exchange_rate numeric, commitment text, reservation text, invoice_id text, invoice_detail_id text, invoice_issuer text, tags jsonb, by_base boolean
) ON COMMIT DROP`

// BillLoad says how a delivery is loaded.
type BillLoad struct {
	Source string // its name in the configuration
	Kind   string // aws, azure, focus
	Scope  *billing.Scope
	// AllowEmpty lets a delivery without a line take the place of one with some.
	AllowEmpty bool
}

// LoadDelivery stores one delivery as the current one of its source and billing
// period, whole or not at all. It reads nothing where token and scope are those of
// the stored delivery. A delivery of a payer whose month another source has delivered is
// refused: the month would count twice.
func (db *DB) LoadDelivery(ctx context.Context, load BillLoad, d billing.Delivery, r billing.Reader) (res BillResult, err error) {
	source, kind, scope := load.Source, load.Kind, load.Scope
	sourceID, err := db.sourceID(ctx, source, kind)
	if err != nil {
		return res, err
	}
	scopeHash := scope.Hash()
	current, err := db.currentDelivery(ctx, sourceID, d.BillingPeriod)
	if err != nil {
		return res, err
	}
	if current.id != 0 && string(current.token) == string(d.Token[:]) && string(current.scope) == string(scopeHash[:]) {
		return BillResult{Lines: current.lines, KeptLines: current.kept}, nil
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		l := &billLoad{tx: tx, sourceID: sourceID, delivery: d, current: current, scopeHash: scopeHash}
		if err := l.stage(ctx, r, scope); err != nil {
			return err
		}
		if l.lines == 0 && current.lines > 0 && !load.AllowEmpty {
			return fmt.Errorf("%w: the new delivery of %s has no line and the stored one has %d, which stays; --allow-empty takes the new one", billing.ErrIncomplete, d.BillingPeriod, current.lines)
		}
		if err := l.onlyOnce(ctx); err != nil {
			return err
		}
		if n, ok := r.(billing.ReadNoter); ok {
			l.notes = n.ReadNotes(d)
		}
		res, err = l.promote(ctx)
		return err
	})
	return res, err
}

type storedDelivery struct {
	id                    int64
	token, scope, content []byte
	lines, kept           int64
}

func (db *DB) currentDelivery(ctx context.Context, sourceID int32, m period.Month) (storedDelivery, error) {
	var s storedDelivery
	err := db.pool.QueryRow(ctx, `SELECT id, token, scope_sha256, content_sha256, lines, kept_lines FROM gpuledger.bill_delivery
		WHERE source_id = $1 AND billing_period = $2 AND superseded_by IS NULL`, sourceID, m.Start()).Scan(&s.id, &s.token, &s.scope, &s.content, &s.lines, &s.kept)
	if errors.Is(err, pgx.ErrNoRows) {
		return storedDelivery{}, nil
	}
	return s, err
}

func (db *DB) sourceID(ctx context.Context, name, kind string) (int32, error) {
	var id int32
	err := db.pool.QueryRow(ctx, `WITH new AS (INSERT INTO gpuledger.source (name, kind) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING id)
		SELECT id FROM new UNION ALL SELECT id FROM gpuledger.source WHERE name = $1 LIMIT 1`, name, kind).Scan(&id)
	return id, err
}

// LookedAt is when a source was last looked at whole, zero for never.
func (db *DB) LookedAt(ctx context.Context, source string) (time.Time, error) {
	var at *time.Time
	err := db.pool.QueryRow(ctx, "SELECT looked_at FROM gpuledger.source WHERE name = $1", source).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && at == nil {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return at.UTC(), nil
}

// StoredScopes are the hashes of the scopes that a source's current deliveries were kept by.
func (db *DB) StoredScopes(ctx context.Context, source string) (map[period.Month][32]byte, error) {
	rows, err := db.pool.Query(ctx, `SELECT d.billing_period, d.scope_sha256 FROM gpuledger.bill_delivery d JOIN gpuledger.source s ON s.id = d.source_id
		WHERE s.name = $1 AND d.superseded_by IS NULL`, source)
	if err != nil {
		return nil, err
	}
	out := map[period.Month][32]byte{}
	var start time.Time
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&start, &hash}, func() error {
		out[period.MonthOf(start)] = [32]byte(hash)
		return nil
	})
	return out, err
}

// SetLookedAt records that every delivery that a source had at a time is stored.
func (db *DB) SetLookedAt(ctx context.Context, source string, at time.Time) error {
	_, err := db.pool.Exec(ctx, "UPDATE gpuledger.source SET looked_at = greatest(looked_at, $2) WHERE name = $1", source, at)
	return err
}

// billLoad is one delivery on its way in, within a transaction.
type billLoad struct {
	tx        pgx.Tx
	sourceID  int32
	delivery  billing.Delivery
	current   storedDelivery
	scopeHash [32]byte

	controls    billing.Controls
	bases       billing.Bases
	lines, kept int64
	keySum      [4]uint64 // Σ of the kept lines' keys, which row order cannot change
	notes       []string
}

// stage streams the kept lines into a temporary table and adds up every line.
func (l *billLoad) stage(ctx context.Context, r billing.Reader, scope *billing.Scope) error {
	if _, err := l.tx.Exec(ctx, createStage); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	read := make(chan error, 1)
	readCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := l.read(readCtx, r, scope, pw)
		pw.CloseWithError(err)
		read <- err
	}()
	copyErr := copyFrom(ctx, l.tx, pr, "stage_line", lineColumns)
	pr.CloseWithError(errors.New("load ended"))
	if copyErr != nil {
		cancel()
	}
	if err := <-read; err != nil && (copyErr == nil || ctx.Err() == nil && !errors.Is(err, context.Canceled) && err.Error() != "load ended") {
		return err // the cause of the failed COPY, in the reader's own words
	}
	return copyErr
}

// onlyOnce refuses a payer's month that another source has delivered.
func (l *billLoad) onlyOnce(ctx context.Context) error {
	set := map[string]bool{}
	for _, c := range l.controls.Rows() {
		if c.PayerAccount != "" {
			set[c.PayerAccount] = true
		}
	}
	payers := slices.Sorted(maps.Keys(set))
	// Two sources may load at once: the second waits here, and sees what the first stored.
	if _, err := l.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('gpuledger payers'))"); err != nil {
		return err
	}
	var other, payer string
	err := l.tx.QueryRow(ctx, `SELECT s.name, c.payer FROM gpuledger.bill_delivery d JOIN gpuledger.source s ON s.id = d.source_id JOIN gpuledger.bill_control c ON c.delivery_id = d.id
		WHERE d.billing_period = $1 AND d.source_id <> $2 AND d.superseded_by IS NULL AND c.payer = ANY ($3) ORDER BY s.name, c.payer LIMIT 1`,
		l.delivery.BillingPeriod.Start(), l.sourceID, payers).Scan(&other, &payer)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s of payer %s is delivered by the source %s already, and would count twice; configure one of the two", l.delivery.BillingPeriod, payer, other)
}

// flushAt is how many bytes of rows are gathered before they go to the server.
const flushAt = 1 << 18

func (l *billLoad) read(ctx context.Context, r billing.Reader, scope *billing.Scope, w io.Writer) error {
	rows := newCopyRows()
	err := r.Read(ctx, l.delivery, scope.Keep, func(line *billing.Line, kept bool) error {
		l.lines++
		if err := errors.Join(l.controls.Add(line, kept), l.bases.Add(line, kept)); err != nil {
			return err
		}
		if !kept {
			return nil
		}
		l.kept++
		key := line.Key()
		l.addKey(key)
		lineRow(rows, line, key)
		if len(rows.buf) < flushAt {
			return nil
		}
		_, err := w.Write(rows.buf)
		rows.buf = rows.buf[:0]
		return err
	})
	if err != nil {
		return err
	}
	for _, line := range l.bases.Lines() {
		key := line.Key()
		l.addKey(key)
		lineRow(rows, &line, key)
	}
	rows.trailer()
	_, err = w.Write(rows.buf)
	return err
}

func (l *billLoad) addKey(key [32]byte) {
	var carry uint64
	for i := range l.keySum {
		var limb uint64
		for _, b := range key[i*8 : i*8+8] {
			limb = limb<<8 | uint64(b)
		}
		l.keySum[i], carry = bits.Add64(l.keySum[i], limb, carry)
	}
}

// contentHash identifies what the delivery says, whatever the order and ids of its rows.
func (l *billLoad) contentHash() [32]byte {
	b, err := json.Marshal(struct {
		Keys     [4]uint64
		Controls []string
	}{l.keySum, controlText(l.controls.Rows())})
	if err != nil {
		panic(err) // integers and strings always marshal
	}
	return sha256.Sum256(b)
}

func controlText(rows []billing.Control) []string {
	out := make([]string, len(rows))
	for i, c := range rows {
		out[i] = fmt.Sprintf("%s|%s|%s|%s|%s|%s|%t|%d|%s|%s|%s|%s|%d|%d", c.ChargeMonth, c.PayerAccount, c.UsageAccount, c.Service, c.Class, c.Currency, c.InScope,
			c.Lines, c.Billed, c.Effective, c.List, c.Contracted, c.NoList, c.NoContracted)
	}
	return out
}

func lineRow(c *copyRows, l *billing.Line, key [32]byte) {
	c.row(45)
	c.bytea(key[:])
	c.date(period.MonthOf(l.ChargePeriod.Start).Start())
	instanceType := l.InstanceType
	if instanceType == "" {
		instanceType = l.InstanceFamily
	}
	resource := []string{l.Provider, l.PayerAccount, l.UsageAccount, l.ResourceID, l.InstanceID, instanceType, l.Region, l.AvailabilityZone, l.Service, l.SKU, l.UsageType, l.Operation}
	h := sha256.New()
	for _, s := range resource {
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	c.bytea(h.Sum(nil))
	for _, s := range resource {
		c.text(s)
	}
	c.text(string(l.Class))
	c.text(string(l.Component))
	c.timestamp(l.ChargePeriod.Start)
	c.timestamp(l.ChargePeriod.End)
	if us, ok := l.BilledMicros(); ok && l.Class == billing.NodeUsage {
		hours, _ := l.InstanceHours()
		c.int8(us)
		c.amount(hours)
	} else {
		c.null()
		c.null()
	}
	for _, s := range []string{l.ChargeCategory, l.ChargeClass, l.ChargeType, l.Description, l.Currency} {
		c.text(s)
	}
	c.amount(l.Costs.Billed)
	c.amount(l.Costs.Effective)
	c.optAmount(l.Costs.List)
	c.optAmount(l.Costs.Contracted)
	c.optAmount(l.ConsumedQuantity)
	c.text(l.ConsumedUnit)
	c.optAmount(l.PricingQuantity)
	c.text(l.PricingUnit)
	c.optAmount(l.ListUnitPrice)
	c.optAmount(l.ContractedUnitPrice)
	c.text(l.PricingCurrency)
	c.optAmount(l.ExchangeRate)
	for _, s := range []string{l.Commitment, l.Reservation, l.InvoiceID, l.InvoiceDetail, l.InvoiceIssuer} {
		c.text(s)
	}
	tags := make(map[string]string, len(l.Tags))
	for k, v := range l.Tags {
		tags[storable(k)] = storable(v)
	}
	b, err := json.Marshal(tags)
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	c.jsonb(b)
	c.bool(l.ByBase)
}

// promote makes the staged lines the current ones: new keys come in, vanished ones
// are end-dated, the rest stays as it is.
func (l *billLoad) promote(ctx context.Context) (BillResult, error) {
	res := BillResult{Lines: l.lines, KeptLines: l.kept, Notes: append(append([]string(nil), l.delivery.Notes...), l.notes...)}
	content := l.contentHash()
	if l.current.id != 0 && string(l.current.content) == string(content[:]) && string(l.current.scope) == string(l.scopeHash[:]) {
		_, err := l.tx.Exec(ctx, "UPDATE gpuledger.bill_delivery SET token = $2 WHERE id = $1", l.current.id, l.delivery.Token[:])
		return res, err
	}
	res.Changed = true
	controls := l.controls.Rows()
	res.Months = monthsOf(controls)
	for _, m := range res.Months {
		if _, err := l.tx.Exec(ctx, "SELECT gpuledger.ensure_month('bill_line', $1::date)", m.Start()); err != nil {
			return res, err
		}
	}
	if l.current.id != 0 { // makes room in the index of current deliveries until the new id is known
		if _, err := l.tx.Exec(ctx, "UPDATE gpuledger.bill_delivery SET superseded_by = 0 WHERE id = $1", l.current.id); err != nil {
			return res, err
		}
	}
	var submitted *time.Time
	if !l.delivery.Submitted.IsZero() {
		submitted = &l.delivery.Submitted
	}
	notes := res.Notes
	if notes == nil {
		notes = []string{}
	}
	var id int64
	err := l.tx.QueryRow(ctx, `INSERT INTO gpuledger.bill_delivery (source_id, billing_period, format, delivery_id, manifest, token, scope_sha256, content_sha256, lines, kept_lines, notes, submitted_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) RETURNING id`,
		l.sourceID, l.delivery.BillingPeriod.Start(), l.delivery.Format, l.delivery.ID, l.delivery.Manifest, l.delivery.Token[:], l.scopeHash[:], content[:],
		l.lines, l.kept, notes, submitted).Scan(&id)
	if err != nil {
		return res, err
	}
	if _, err := l.tx.Exec(ctx, "UPDATE gpuledger.bill_delivery SET superseded_by = $2 WHERE id = $1 AND $1 <> 0", l.current.id, id); err != nil {
		return res, err
	}
	if err := l.promoteLines(ctx, id, &res); err != nil {
		return res, err
	}
	return res, l.saveControls(ctx, id, controls)
}

func (l *billLoad) promoteLines(ctx context.Context, delivery int64, res *BillResult) error {
	_, err := l.tx.Exec(ctx, `INSERT INTO gpuledger.bill_resource (sha256, provider, payer, account, resource_id, instance_id, instance_type, region, zone, service, sku, usage_type, operation)
		SELECT DISTINCT ON (resource_sha256) resource_sha256, provider, payer, account, resource_id, instance_id, instance_type, region, zone, service, sku, usage_type, operation
		FROM stage_line ORDER BY resource_sha256 ON CONFLICT (sha256) DO NOTHING`)
	if err != nil {
		return err
	}
	_, err = l.tx.Exec(ctx, `CREATE TEMP TABLE stage_numbered ON COMMIT DROP AS
		SELECT s.*, row_number() OVER (PARTITION BY key) AS ordinal, r.id AS bill_resource_id
		FROM stage_line s JOIN gpuledger.bill_resource r ON r.sha256 = s.resource_sha256`)
	if err != nil {
		return err
	}
	if _, err := l.tx.Exec(ctx, "ANALYZE stage_numbered"); err != nil {
		return err
	}
	gone, err := l.tx.Exec(ctx, `UPDATE gpuledger.bill_line b SET last_delivery = $3
		WHERE b.source_id = $1 AND b.billing_period = $2 AND b.last_delivery IS NULL
		AND NOT EXISTS (SELECT FROM stage_numbered s WHERE s.key = b.key AND s.ordinal = b.ordinal)`, l.sourceID, l.delivery.BillingPeriod.Start(), delivery)
	if err != nil {
		return err
	}
	came, err := l.tx.Exec(ctx, `INSERT INTO gpuledger.bill_line (charge_month, source_id, billing_period, key, ordinal, first_delivery, bill_resource_id, class, component,
			charge_start, charge_end, billed_us, instance_hours, charge_category, charge_class, charge_type, description, currency, billed_cost, effective_cost, list_cost, contracted_cost,
			consumed_quantity, consumed_unit, pricing_quantity, pricing_unit, list_unit_price, contracted_unit_price, pricing_currency, exchange_rate,
			commitment, reservation, invoice_id, invoice_detail_id, invoice_issuer, tags, by_base)
		SELECT s.charge_month, $1, $2, s.key, s.ordinal, $3, s.bill_resource_id, s.class, s.component,
			s.charge_start, s.charge_end, s.billed_us, s.instance_hours, s.charge_category, s.charge_class, s.charge_type, s.description, s.currency, s.billed_cost, s.effective_cost, s.list_cost, s.contracted_cost,
			s.consumed_quantity, s.consumed_unit, s.pricing_quantity, s.pricing_unit, s.list_unit_price, s.contracted_unit_price, s.pricing_currency, s.exchange_rate,
			s.commitment, s.reservation, s.invoice_id, s.invoice_detail_id, s.invoice_issuer, s.tags, s.by_base
		FROM stage_numbered s
		WHERE NOT EXISTS (SELECT FROM gpuledger.bill_line b WHERE b.source_id = $1 AND b.billing_period = $2 AND b.last_delivery IS NULL AND b.key = s.key AND b.ordinal = s.ordinal)
		ORDER BY s.charge_start, s.key, s.ordinal`, l.sourceID, l.delivery.BillingPeriod.Start(), delivery)
	if err != nil {
		return err
	}
	res.New, res.Gone = came.RowsAffected(), gone.RowsAffected()
	return nil
}

func (l *billLoad) saveControls(ctx context.Context, delivery int64, controls []billing.Control) error {
	c := newCopyRows()
	for _, k := range controls {
		c.row(15)
		c.int8(delivery)
		c.date(k.ChargeMonth.Start())
		for _, s := range []string{k.PayerAccount, k.UsageAccount, k.Service, string(k.Class), k.Currency} {
			c.text(s)
		}
		c.bool(k.InScope)
		c.int8(k.Lines)
		c.amount(k.Billed)
		c.amount(k.Effective)
		c.amount(k.List)
		c.amount(k.Contracted)
		c.int8(k.NoList)
		c.int8(k.NoContracted)
	}
	return c.copyTo(ctx, l.tx, "gpuledger.bill_control", `delivery_id, charge_month, payer, account, service, class, currency, in_scope, lines,
		billed_cost, effective_cost, list_cost, contracted_cost, lines_without_list, lines_without_contracted`)
}

func monthsOf(controls []billing.Control) []period.Month {
	var out []period.Month
	for _, c := range controls { // in ascending order of their month
		if n := len(out); n == 0 || out[n-1] != c.ChargeMonth {
			out = append(out, c.ChargeMonth)
		}
	}
	return out
}
