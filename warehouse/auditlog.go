package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

// AuditLog lists who did what, the oldest first; of one month, or of all where it is zero.
func (db *DB) AuditLog(ctx context.Context, m period.Month) (*chargeback.Table, error) {
	return db.Query(ctx, `SELECT id, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS at, actor, db_user, action, to_char(period, 'YYYY-MM') AS period, run_id, detail, encode(sha256, 'hex') AS sha256
		FROM gpuledger.audit_log WHERE $1::date IS NULL OR period = $1 ORDER BY id`, monthOrNil(m))
}

// VerifyLog recomputes the chain of the audit log, and returns how many entries it has, the
// hash of the last, and whether one has the hash that is looked for. An entry that was changed, or is not followed by the one that was,
// is an error; that the newest were cut off shows only against a hash that was kept
// elsewhere.
func (db *DB) VerifyLog(ctx context.Context, wanted string) (entries, head string, seen bool, err error) {
	rows, err := db.pool.Query(ctx, `SELECT id, at, actor, db_user, action, coalesce(period::text, ''), coalesce(run_id, ''), detail::text, prev, sha256 FROM gpuledger.audit_log ORDER BY id`)
	if err != nil {
		return "", "", false, err
	}
	var id, n int64
	var at time.Time
	var actor, user, action, month, run, detail string
	var prev, sum, before []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &actor, &user, &action, &month, &run, &detail, &prev, &sum}, func() error {
		want := sha256.Sum256([]byte(strings.Join([]string{hex.EncodeToString(prev), at.UTC().Format("2006-01-02T15:04:05.000000Z"), actor, user, action, month, run, detail}, "\x1f")))
		switch {
		case string(prev) != string(before):
			return fmt.Errorf("entry %d does not follow the one before it: one between them is gone, or was changed", id)
		case string(sum) != string(want[:]):
			return fmt.Errorf("entry %d (%s, %s by %s) was changed after it was written", id, at.UTC().Format(time.RFC3339), action, actor)
		}
		n, before = n+1, append([]byte(nil), sum...)
		seen = seen || hex.EncodeToString(sum) == wanted
		return nil
	})
	return strconv.FormatInt(n, 10), hex.EncodeToString(before), seen, err
}
