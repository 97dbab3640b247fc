package arch

// edges says which packages of this module a package may import, tests apart. A
// package that is not here fails the test. Levels go up: nothing imports downwards.
var edges = map[string][]string{
	// 0: no package of ours
	"gpuledger":       {},
	"billing/money":   {},
	"billing/period":  {},
	"billing/ec2":     {}, // instance types and what is in them: data
	"billing/azurevm": {}, // names of Azure's machines
	"billing/gce":     {}, // and of Google's
	"objstore":        {},

	// 1: what a bill, a GPU and a policy are
	"billing":            {"billing/money", "billing/period"},
	"gpu":                {"billing/money", "billing/period"},
	"policy":             {"billing/money", "billing/period"},
	"internal/parquetio": {},

	// 2: one provider's exports each; the split
	"billing/table":    {"billing", "billing/money", "billing/period", "internal/parquetio", "objstore"},
	"billing/ratecard": {"billing", "billing/money", "billing/period"},
	"billing/layout":   {"billing", "billing/period", "billing/table", "objstore"},
	"billing/aws":      {"billing", "billing/ec2", "billing/layout", "billing/money", "billing/period", "billing/table", "objstore"},
	"billing/azure":    {"billing", "billing/azurevm", "billing/layout", "billing/money", "billing/period", "billing/table", "objstore"},
	"billing/focus":    {"billing", "billing/azurevm", "billing/ec2", "billing/gce", "billing/layout", "billing/money", "billing/period", "billing/table", "objstore"},
	"billing/gcp":      {"billing", "billing/focus", "billing/gce", "billing/layout", "billing/money", "billing/period", "billing/table", "objstore"},
	"billing/oci":      {"billing", "billing/layout", "billing/money", "billing/period", "billing/table", "objstore"},
	"allocate":         {"billing", "billing/money", "billing/period", "gpu", "policy"},

	// 3: the outside: telemetry in, files out
	"ingest":             {"billing", "billing/money", "billing/period", "gpu", "policy"},
	"ingest/openmetrics": {"billing/period", "gpu", "ingest"},
	"ingest/prometheus":  {"billing/period", "gpu", "ingest"},
	"chargeback":         {"allocate", "billing", "billing/money", "billing/period", "gpu", "internal/parquetio", "objstore", "policy"},

	"internal/fleet": {"billing/period", "gpu", "ingest/openmetrics", "internal/parquetio"}, // made-up fleets, written as the sources write

	// 4: Postgres. It gets lines and samples, and does not know who read them.
	"warehouse/localpg": {},
	"warehouse":         {"gpuledger", "allocate", "billing", "billing/ratecard", "billing/money", "billing/period", "chargeback", "gpu", "policy"},

	// 5: the wiring
	"cmd/gpuledger": {anything},

	// Test support: these are imported by test files only.
	"internal/anyfleet":   {"gpu"},
	"internal/arch":       {},
	"internal/blobtest":   {},
	"internal/bqtest":     {},
	"internal/golden":     {"gpu"},
	"internal/pgtest":     {"warehouse/localpg"},
	"internal/promtest":   {"gpu"},
	"billing/billingtest": {"billing", "billing/money", "billing/period"},
}

// testSupport are the packages that no program may contain.
var testSupport = []string{"internal/anyfleet", "internal/arch", "internal/blobtest", "internal/bqtest", "internal/golden", "internal/pgtest", "internal/promtest", "billing/billingtest"}

// modules says where a package from elsewhere may be imported, tests apart: each
// service's client in one place, so that it can be replaced there. The longest
// prefix counts; one that is not here fails the test.
var modules = map[string][]string{
	"cloud.google.com/go/bigquery":                   {"billing/gcp"},
	"cloud.google.com/go/civil":                      {"billing/gcp"},
	"google.golang.org/api":                          {"billing/gcp"}, // options and errors of BigQuery's client
	"github.com/Azure/azure-sdk-for-go":              {"objstore"},
	"github.com/aws/aws-sdk-go-v2":                   {"objstore", "ingest/prometheus"}, // there the signer, for Amazon Managed Prometheus
	"github.com/aws/aws-sdk-go-v2/service/s3":        {"objstore"},
	"github.com/aws/smithy-go":                       {"objstore"},
	"github.com/fergusstrange/embedded-postgres":     {"warehouse/localpg"},
	"github.com/jackc/pgx/v5":                        {"warehouse", "internal/pgtest"},
	"github.com/jackc/pgx/v5/pgconn":                 {"warehouse", "warehouse/localpg"},
	"github.com/parquet-go/parquet-go":               {"internal/parquetio"},
	"github.com/pressly/goose/v3":                    {"warehouse"},
	"github.com/prometheus/client_model":             {"cmd/gpuledger"}, // the run's own metrics
	"github.com/prometheus/common/config":            {"ingest/prometheus", "cmd/gpuledger"},
	"github.com/prometheus/common/expfmt":            {"cmd/gpuledger"},
	"github.com/prometheus/common/model":             {"ingest/prometheus", "cmd/gpuledger"}, // durations such as 15d
	"github.com/prometheus/prometheus/prompb":        {"ingest/prometheus"},
	"github.com/prometheus/prometheus/tsdb/chunkenc": {"ingest/prometheus"},
	"github.com/prometheus/prometheus/tsdb":          {"internal/promtest"},
	"github.com/prometheus/prometheus/model/labels":  {"internal/promtest"},
	"github.com/spf13/cobra":                         {"cmd/gpuledger"},
	"go.yaml.in/yaml/v3":                             {"policy", "ingest/prometheus"}, // strict decoding, also of gpuledger.yaml; a server's configuration
	"golang.org/x/oauth2":                            {"ingest/prometheus"},           // tokens for Google Managed Prometheus
	"pgregory.net/rapid":                             {"internal/anyfleet"},

	// Small tools, but not in the packages that only calculate.
	"github.com/cenkalti/backoff/v5": {"ingest/prometheus", "warehouse"},
	"github.com/golang/snappy":       {"ingest/prometheus"},
	"github.com/google/go-cmp":       {"billing/billingtest", "internal/golden"},
	"github.com/klauspost/compress":  {"billing/table", "ingest/openmetrics", "chargeback"},
	"golang.org/x/sync":              {"ingest", "ingest/openmetrics", "ingest/prometheus", "internal/fleet", "warehouse", "cmd/gpuledger"},
}

// pure are the packages that only calculate: the same input gives the same output
// on any machine and at any time.
var pure = []string{"allocate", "billing/money", "billing/period", "billing/azurevm", "billing/ec2", "billing/gce", "gpu", "policy"}

// impure is what they do without: standard packages, and functions of them.
var (
	impureImports = []string{"context", "crypto/rand", "database/sql", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec", "syscall"}
	impureCalls   = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.NewTimer", "time.NewTicker", "time.Tick"}
)

// vague are names that say nothing about what belongs in a package.
var vague = []string{"util", "utils", "common", "types", "helper", "helpers", "misc", "shared", "base"}

const maxLines = 500 // what a person reads in one go
