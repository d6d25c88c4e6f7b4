#!/usr/bin/env bash
# labels: fast
# Wrong use and bad input of convert: one clear line, the right exit code, nothing under a final name.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$KONDENSE_TEST_ROOT/tests/data/k3-nano calib=$KONDENSE_TEST_ROOT/tests/data/text/calib.txt

refuses() { # CODE PATTERN args...
    code=0 want=$1 pattern=$2
    shift 2
    "$KONDENSE" "$@" >"$work/out" 2>"$work/err" || code=$?
    test $code -eq "$want" || { echo "$*: exit code $code, $want expected"; cat "$work/err"; exit 1; }
    test "$(wc -l <"$work/err")" -eq 1 || { echo "$*: not one line:"; cat "$work/err"; exit 1; }
    grep -q -- "$pattern" "$work/err" || { echo "$*: no '$pattern' in:"; cat "$work/err"; exit 1; }
    test ! -e "$work/dst/config.json" || { echo "$*: left a model"; exit 1; }
}
refuses 2 "calib" convert "$model" "$work/dst"
refuses 2 "1 to 8" convert "$model" "$work/dst" --calib "$calib" --bpw 9
refuses 2 "1 to 8" convert "$model" "$work/dst" --calib "$calib" --bpw 2x
refuses 2 "stored" convert "$model" "$work/dst" --calib "$calib" --trunk-bpw none
refuses 2 "too small" convert "$model" "$work/dst" --calib "$calib" --rows 2 --cols 32 --size 1000
refuses 2 "recipe" convert "$model" "$work/dst" --calib "$calib" --recipe best
refuses 2 "too few" convert "$model"
refuses 2 "no such option" convert "$model" "$work/dst" --bits 2
refuses 2 "--json takes a file" convert "$model" "$work/dst" --dry-run --json -
refuses 1 "cannot open" convert "$work/none" "$work/dst" --calib "$calib"
refuses 1 "cannot open" convert "$model" "$work/dst" --calib "$work/none.txt"
printf 'short' >"$work/short.txt"
refuses 1 "short.txt" convert "$model" "$work/dst" --calib "$work/short.txt" --rows 2 --cols 32
cp "$work/err" "$work/run"
refuses 1 "short.txt" convert "$model" "$work/dst" --calib "$work/short.txt" --rows 2 --cols 32 --dry-run
cmp "$work/run" "$work/err" || { echo "a dry run says something else"; exit 1; }

# A model that is EXL3 already has nothing to encode: it would be copied under the name of another rate.
"$KONDENSE" synth "$work/exl3" --config "$KONDENSE_TEST_ROOT/tests/data/awkward/tiny.json" --format exl3 >/dev/null
refuses 1 "is EXL3.*convert the original" convert "$work/exl3" "$work/dst" --calib "$calib" --rows 2 --cols 32

# A damaged shard.
cp -r "$model" "$work/cut"
chmod -R u+w "$work/cut"
truncate -s 11000000 "$work/cut/model-00002-of-000002.safetensors"
refuses 1 "model-00002" convert "$work/cut" "$work/dst" --calib "$calib" --rows 2 --cols 32

# A disk that is full: a small tmpfs where mounting is allowed.
mkdir "$work/small"
if mount -t tmpfs -o size=6m none "$work/small" 2>/dev/null; then
    code=0
    "$KONDENSE" convert "$model" "$work/small/dst" --calib "$calib" --rows 2 --cols 32 >/dev/null 2>"$work/err" || code=$?
    umount "$work/small"
    test $code -eq 1 && grep -q "disk\|space" "$work/err" || { echo "full disk: $code"; cat "$work/err"; exit 1; }
fi
