#!/bin/sh
# Every check and every test. A finding of the linters does not hide what the tests
# say: both run, and both must be clean.
set -u
cd "$(dirname "$0")/.." || exit 1
GO=${GO:-go} PKG=${PKG:-./...}
export GO PKG

sh scripts/servers.sh postgres prometheus || exit 1

# The first time it takes minutes, most of them one linker: the linters run beside it.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
sh scripts/servers.sh prometheus3 >"$log" 2>&1 &
build=$!

lint=0
sh scripts/lint.sh || lint=1

wait "$build" || { cat "$log" >&2; exit 1; }
cat "$log"

# gotestsum runs `go test` and prints its lines; at the end it adds the skipped and
# the failed tests by name, and the counts.
tests=0
echo "== go test $PKG"
# shellcheck disable=SC2086 # several flags and packages are meant to split
$GO tool gotestsum --format standard-quiet -- ${TESTFLAGS:-} $PKG || tests=1

[ $lint = 0 ] || echo "the linters failed: see above" >&2
[ $lint = 0 ] && [ $tests = 0 ]
