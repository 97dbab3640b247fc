package gpuledger

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"testing"
)

// Databases exist that these migrations made: they are not edited, a change is a new one.
func TestMigrationsAreNotEdited(t *testing.T) {
	sums := map[string]string{
		"migrations/00001_inputs.sql":          "714c78901c201a290fb6c5e0ca3b0eee45aa1a575ef63065d5f24132ac6179c1",
		"migrations/00002_ledger.sql":          "166ddb6e9684bc0cd47efe65ae0414b59b812c89042489c0e1f7c6db93f4b107",
		"migrations/00003_within_the_hour.sql": "ad087b168b08d6f82dd8c8f1f2fb040fd785b54a634417eafc1b732c793e8730",
		"migrations/00004_inventory.sql":       "aada9a9114f4d97c73692ce170c531687e0f87d6beac5cc61b1e498bbd2ac3a1",
		"migrations/00005_bills.sql":           "ca382f431e5c13f7f4ec6d6bee54680a2f8948f95f38cf8d935f9bb9a79d4f8a",
		"migrations/00006_closing.sql":         "da859ce1039d625a96f5dec6d0cf005ca7aae29e906102665c3df867a955898b",
		"migrations/00007_adjustments.sql":     "9979dc7cbc8b31bcc846b16928e937fafe2328bc062b249029e4f9fdde7a592a",
	}
	files, err := fs.Glob(Migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := Migrations.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:]); got != sums[name] {
			t.Errorf("%s: %s, was %q: write a new migration; a new one is added here", name, got, sums[name])
		}
		delete(sums, name)
	}
	for name := range sums {
		t.Errorf("%s is gone", name)
	}
}
