#!/bin/sh
# Installs the Debian packages of the named lists (tools/packages.txt) that are missing; says nothing
# when none is. With --check first: only names what is missing, status 1 if anything is.
#
#     tools/packages.sh build test
set -eu
here=$(dirname "$0")
check=
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi
want=
for list; do
    names=$(sed -n "s/^$list: //p" "$here/packages.txt")
    [ -n "$names" ] || { echo "packages.sh: no list '$list' in packages.txt" >&2; exit 2; }
    want="$want $names"
done
if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system; Kondense needs what Debian calls:" $want >&2
    exit 0
fi
# Native packages of another architecture carry its name; dpkg shows native ones without.
have=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Architecture}\n' |
    awk '$1 == "installed" {print $2; print $2 ":" $3}')
missing=
for p in $want; do
    printf '%s\n' "$have" | grep -qxF "$p" || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ -n "$check" ]; then
    echo "missing packages:$missing"
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
    root=sudo
    if ! command -v sudo >/dev/null; then
        echo "missing packages, and neither root nor sudo to install them; as root run:" >&2
        echo "  apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
fi
log=${TMPDIR:-/tmp}/kondense-packages.$$.log
trap 'rm -f "$log"' EXIT
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt="$root apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
case "$missing" in
*:arm64*) $root dpkg --add-architecture arm64 ;;
esac
# A source that cannot be refreshed need not hold the wanted packages: the install decides.
$apt update >"$log" 2>&1 || true
if ! $apt install --no-install-recommends $missing >>"$log" 2>&1; then
    tail -n 25 "$log" >&2
    echo "packages.sh: could not install$missing" >&2
    exit 1
fi
