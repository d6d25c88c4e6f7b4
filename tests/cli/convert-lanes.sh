#!/usr/bin/env bash
# Experts side by side on the CPU: the bytes do not depend on how many there are or on their threads, a
# kill and a resume with another number do not show, and the memory planned with them is enough.
set -eu
. "$KONDENSE_TEST_ROOT/tests/cli/kill_when.bash"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed 's/"num_experts": 2/"num_experts": 6/; s/"first_k_dense_replace": 1/"first_k_dense_replace": 2/' \
    "$KONDENSE_TEST_ROOT/tests/data/awkward/tiny.json" >"$work/tiny.json"
args="--calib $KONDENSE_TEST_ROOT/tests/data/text/calib.txt --rows 2 --cols 32 --quiet --trunk-bpw stored --head-bpw stored"
"$KONDENSE" synth "$work/src" --config "$work/tiny.json" >/dev/null

listing() { (cd "$1" && find . -type f ! -name convert.log ! -path './.work/*' -print0 | sort -z | xargs -0 sha256sum); }
make() { # NAME LINE options...
    local name=$1 line=$2
    shift 2
    "$KONDENSE" convert "$work/src" "$work/$name" $args --json "$work/$name.json" "$@" >"$work/said"
    grep -qx " *lanes *$line" "$work/said" || test -z "$line" || { echo "no '$line':"; cat "$work/said"; exit 1; }
    listing "$work/$name" >"$work/$name.sum"
    cmp "$work/one.sum" "$work/$name.sum"
    python3 -c 'import json, sys
j = json.load(open(sys.argv[1]))
assert j["peak_bytes"] <= j["planned_peak_bytes"], (j["peak_bytes"], j["planned_peak_bytes"])' "$work/$name.json"
}
"$KONDENSE" convert "$work/src" "$work/one" $args --lanes 1 --threads 3 >"$work/said"
! grep -q lanes "$work/said"
listing "$work/one" >"$work/one.sum"
make four "4 experts at a time, 1 threads each" --threads 4
make two "2 experts at a time, 1.5 threads each" --threads 3 --lanes 2
make many "3 experts at a time, 1 threads each" --threads 3 --lanes 64
code=0
"$KONDENSE" convert "$work/src" "$work/none" $args --lanes 513 2>"$work/err" || code=$?
test $code -eq 2 && grep -q -- --lanes "$work/err"

kill_when "$work/killed" '.work/*/*.unit' "$KONDENSE" convert "$work/src" "$work/killed" $args --threads 4 --lanes 4
make killed "" --resume --lanes 2 --threads 2
