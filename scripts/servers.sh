#!/bin/sh
# Finds the servers that the tests start: Postgres 14 or newer, Prometheus, and a
# Prometheus 3. What is missing of the first two is installed as root with apt-get;
# elsewhere this says how to install it, and fails. Prometheus 3 is built from the
# module whose version go.mod has, into bin/, once: no distribution has it yet.
#
#   scripts/servers.sh [--if-easy] postgres|prometheus|prometheus3...
#
# --if-easy: install where that needs nobody's leave, and be content otherwise.
set -eu
cd "$(dirname "$0")/.."

if_easy=
if [ "${1:-}" = --if-easy ]; then
	if_easy=1
	shift
fi

# The places in which the program itself looks (warehouse/localpg).
find_postgres() {
	if [ -n "${GPULEDGER_PG_BIN:-}" ]; then
		dirs=$GPULEDGER_PG_BIN
	else
		dirs="$(pg_config --bindir 2>/dev/null || true)
$(for d in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin \
			/usr/local/opt/postgresql@*/bin /Library/PostgreSQL/*/bin /usr/local/pgsql/bin /usr/bin \
			/Applications/Postgres.app/Contents/Versions/latest/bin; do echo "$d"; done)
$(p=$(command -v postgres) && dirname "$p" || true)"
	fi
	echo "$dirs" | while IFS= read -r dir; do
		[ -n "$dir" ] && [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] || continue
		version=$("$dir/postgres" --version 2>/dev/null) || continue
		major=$(echo "$version" | sed -n 's/.*(PostgreSQL) \([0-9]*\).*/\1/p')
		if [ "${major:-0}" -ge 14 ]; then
			echo "$version in $dir"
			break
		fi
	done
}

find_prometheus() {
	path=$(command -v "${GPULEDGER_PROMETHEUS:-prometheus}") || return 0
	# Prometheus 2 writes its version to stderr.
	version=$("$path" --version 2>&1 | sed -n '1s/\(prometheus, version [^ ]*\).*/\1/p')
	[ -z "$version" ] || echo "$version at $path"
}

# The place in which the tests look (internal/promtest).
find_prometheus3() {
	path=${GPULEDGER_PROMETHEUS3:-$PWD/bin/prometheus-$module_version}
	[ ! -x "$path" ] || echo "prometheus, version $module_version at $path"
}

build_prometheus3() {
	echo "== building Prometheus 3 of $module_version into bin/ (once, some minutes)"
	# Its own folder, as go install names the file itself; remove_all_sd leaves the
	# clients of the clouds out.
	dir=$PWD/bin/build-prometheus3
	mkdir -p "$dir"
	if GOBIN="$dir" GOFLAGS= ${GO:-go} install -tags remove_all_sd -ldflags '-s -w' \
		"github.com/prometheus/prometheus/cmd/prometheus@$module_version"; then
		rm -f bin/prometheus-v*
		mv "$dir/prometheus" "bin/prometheus-$module_version"
		rmdir "$dir"
	else
		rm -rf "$dir"
		echo "Prometheus 3 could not be built; GPULEDGER_PROMETHEUS3 names one that is there" >&2
		return 1
	fi
}

module_version=$(sed -n 's|^[[:space:]]*github.com/prometheus/prometheus \(v[^ ]*\).*|\1|p' go.mod)

missing=
for server; do
	found=$("find_$server")
	if [ -n "$found" ]; then
		[ -n "$if_easy" ] || echo "== $found"
	elif [ "$server" = prometheus3 ]; then
		[ -z "${GPULEDGER_PROMETHEUS3:-}" ] || {
			echo "GPULEDGER_PROMETHEUS3=$GPULEDGER_PROMETHEUS3 is no program" >&2
			exit 1
		}
		build_prometheus3
	else
		missing="$missing $server"
	fi
done
[ -n "$missing" ] || exit 0

case ${GPULEDGER_PG_BIN:+named}$missing in named*postgres*)
	echo "GPULEDGER_PG_BIN=$GPULEDGER_PG_BIN holds no Postgres 14 or newer" >&2
	exit 1 ;;
esac
case ${GPULEDGER_PROMETHEUS:+named}$missing in named*prometheus*)
	echo "GPULEDGER_PROMETHEUS=$GPULEDGER_PROMETHEUS is no Prometheus" >&2
	exit 1 ;;
esac

packages=$(echo "$missing" | sed 's/postgres/postgresql/; s/^ //')

apt_install() {
	echo "== missing:$missing; apt-get install -y --no-install-recommends $packages"
	log=$(mktemp)
	policy=/usr/sbin/policy-rc.d
	ours=
	# Nothing is to listen on this machine because somebody ran the tests: the
	# packages would start their services at once.
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
		ours=1
	fi
	trap 'rm -f "$log"; [ -z "$ours" ] || rm -f $policy' EXIT
	trap 'exit 1' HUP INT TERM
	status=0
	{
		export DEBIAN_FRONTEND=noninteractive
		apt-get -o Acquire::Retries=3 -qq update </dev/null &&
			# shellcheck disable=SC2086 # one word a package
			apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 -qq \
				install -y --no-install-recommends $packages </dev/null
	} >"$log" 2>&1 || status=$?
	if [ $status != 0 ]; then
		tail -n 30 "$log" >&2
		echo "apt-get failed" >&2
		return 1
	fi
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	if apt_install; then
		for server in $missing; do
			found=$("find_$server")
			if [ -z "$found" ]; then
				echo "$server is not found after its installation" >&2
				exit 1
			fi
			echo "== $found"
		done
		exit 0
	fi
fi
[ -z "$if_easy" ] || exit 0

echo "The tests run on real servers, and these are missing:$missing" >&2
if command -v apt-get >/dev/null; then
	echo "  sudo apt-get install --no-install-recommends $packages" >&2
elif command -v dnf >/dev/null; then
	echo "  sudo dnf install $(echo "$packages" | sed 's/postgresql/postgresql-server/; s/prometheus/golang-github-prometheus/')" >&2
elif command -v brew >/dev/null || [ "$(uname)" = Darwin ]; then
	echo "  brew install $(echo "$packages" | sed 's/postgresql/postgresql@16/')" >&2
fi
case $missing in *postgres*)
	echo "Postgres 14 or newer; GPULEDGER_PG_BIN names the folder of its programs where they are in an unusual place." >&2 ;;
esac
case $missing in *prometheus*)
	echo "Prometheus 2 or 3; GPULEDGER_PROMETHEUS names its program where it is not on PATH." >&2 ;;
esac
exit 1
