#!/bin/sh
# Formatting, vet and staticcheck, of the versions that go.mod pins. All three run,
# so that one look shows everything.
set -u
cd "$(dirname "$0")/.." || exit 1
GO=${GO:-go} PKG=${PKG:-./...}
failed=0

echo "== gofumpt"
badly=$($GO tool gofumpt -l .) || failed=1
if [ -n "$badly" ]; then
	echo "not formatted (make format mends it):" >&2
	echo "$badly" >&2
	failed=1
fi

echo "== go vet $PKG"
# shellcheck disable=SC2086 # several packages are meant to split
$GO vet $PKG || failed=1

echo "== staticcheck $PKG"
# shellcheck disable=SC2086
$GO tool staticcheck $PKG || failed=1

exit $failed
