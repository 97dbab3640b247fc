#!/bin/sh
# Each fuzz target for a while, one after another: go fuzzes one target at a time.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go} PKG=${PKG:-./...} FUZZTIME=${FUZZTIME:-20s}

# shellcheck disable=SC2086 # several packages are meant to split
for package in $($GO list $PKG); do
	for target in $($GO test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "== $package $target"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
	done
done
