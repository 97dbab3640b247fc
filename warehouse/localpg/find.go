package localpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// minMajor is the oldest Postgres the warehouse supports.
const minMajor = 14

// binaries is one installed Postgres.
type binaries struct {
	dir     string
	version string // "15.18"
	major   int
}

// findBinaries returns the first installed Postgres that can run the data: of
// major version want, or any supported one if want is 0. It returns nil where
// there is none, with the versions it passed over.
func findBinaries(want int) (found *binaries, passedOver []string, err error) {
	if dir := os.Getenv("GPULEDGER_PG_BIN"); dir != "" {
		b, err := inspect(dir)
		if err != nil {
			return nil, nil, fmt.Errorf("GPULEDGER_PG_BIN=%s: %w", dir, err)
		}
		if want != 0 && b.major != want {
			return nil, nil, fmt.Errorf("GPULEDGER_PG_BIN=%s is Postgres %s, but the data was made by Postgres %d: "+
				"name a Postgres %d, or use another folder", dir, b.version, want, want)
		}
		if b.major < minMajor {
			return nil, nil, fmt.Errorf("GPULEDGER_PG_BIN=%s is Postgres %s: %d or newer is needed", dir, b.version, minMajor)
		}
		return b, nil, nil
	}
	seen := map[string]bool{}
	for _, dir := range candidateDirs() {
		if seen[dir] {
			continue
		}
		seen[dir] = true
		b, err := inspect(dir)
		if err != nil {
			continue // a candidate is only a guess
		}
		if b.major < minMajor || (want != 0 && b.major != want) {
			passedOver = append(passedOver, b.version)
			continue
		}
		return b, nil, nil
	}
	return nil, passedOver, nil
}

// fixedPlaces are where packages put Postgres; of several the newest is first.
var fixedPlaces = []string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // the PostgreSQL project's RPMs
	"/opt/homebrew/opt/postgresql@*/bin", // macOS on ARM
	"/usr/local/opt/postgresql@*/bin",    // macOS on Intel
	"/Library/PostgreSQL/*/bin",          // the installer for macOS
	"/usr/local/pgsql/bin", "/usr/bin",   // from source; Fedora, Arch
	"/Applications/Postgres.app/Contents/Versions/latest/bin",
}

func candidateDirs() []string {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range fixedPlaces {
		found, _ := filepath.Glob(pattern) // only a bad pattern fails
		sort.Slice(found, func(i, j int) bool { return lastNumber(found[i]) > lastNumber(found[j]) })
		dirs = append(dirs, found...)
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real // initdb finds its share folder next to the real file
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	return dirs
}

var numberRE = regexp.MustCompile(`\d+`)

func lastNumber(path string) int {
	all := numberRE.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1]) // too long to be a version: 0 or the maximum, both harmless
	return n
}

var versionRE = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[.\w]*)`)

func inspect(dir string) (*binaries, error) {
	for _, name := range []string{"initdb", "postgres"} {
		if !isExecutable(filepath.Join(dir, name)) {
			return nil, fmt.Errorf("no program %s in it", name)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("postgres --version: %w: %s", err, strings.TrimSpace(string(out)))
	}
	m := versionRE.FindStringSubmatch(string(out))
	if m == nil {
		return nil, fmt.Errorf("postgres --version says %q", strings.TrimSpace(string(out)))
	}
	major, err := strconv.Atoi(m[2])
	if err != nil {
		return nil, fmt.Errorf("postgres --version says %q", strings.TrimSpace(string(out)))
	}
	return &binaries{dir: dir, version: m[1], major: major}, nil
}

func isExecutable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}
