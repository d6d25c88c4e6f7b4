#!/usr/bin/env bash
# labels: gpu
# --device: wrong texts are refused, a machine without such a device says so and offers the CPU, and on one
# with a device a conversion gives the CPU's bytes, also after a kill.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
args="--calib $KONDENSE_TEST_ROOT/tests/data/text/calib.txt --rows 6 --cols 96 --bpw 2.3 --quiet"
"$KONDENSE" synth "$work/src" --config "$KONDENSE_TEST_ROOT/tests/data/awkward/config.json" --seed 7 >/dev/null

for text in gpu cuda: cuda:x cuda:0, cuda:0,0 cuda:-1; do
    code=0
    "$KONDENSE" convert "$work/src" "$work/none" $args --device "$text" 2>"$work/err" || code=$?
    test $code -eq 2 && grep -q -- --device "$work/err" || { echo "$text: $code"; cat "$work/err"; exit 1; }
done
# What is wrong without looking at a device is told first.
for wrong in "--bpw 9" "--size 0" "--trunk-bpw none" "--check-text x" "--discard-source" "--calib-class fast --farm :0"; do
    code=0
    "$KONDENSE" convert "$work/src" "$work/none" $args --device cuda:1000 $wrong 2>"$work/err" || code=$?
    test $code -eq 2 && grep -q -- "${wrong%% *}" "$work/err" || { echo "$wrong: $code"; cat "$work/err"; exit 1; }
done
code=0
"$KONDENSE" pilot "$work/src" --device cuda:1000 --machines nobody 2>"$work/err" || code=$?
test $code -eq 2 && grep -q nobody "$work/err" || { echo "--machines: $code"; cat "$work/err"; exit 1; }
code=0
"$KONDENSE" convert "$work/src" "$work/none" $args --device cuda:1000 2>"$work/err" || code=$?
test $code -eq 1 && grep -q -- "--device cpu" "$work/err" || { cat "$work/err"; exit 1; }
test "$(wc -l <"$work/err")" -eq 1 && test ! -e "$work/none"

"$KONDENSE" convert "$work/src" "$work/none" $args --device cuda --dry-run >/dev/null 2>"$work/err" || {
    grep -q -- "--device cpu" "$work/err" || { cat "$work/err"; exit 1; }
    echo "no device: skipped"
    exit 77
}
listing() { (cd "$1" && find . -type f ! -name convert.log ! -path './.work/*' -print0 | sort -z | xargs -0 sha256sum); }
"$KONDENSE" convert "$work/src" "$work/cpu" $args >/dev/null
listing "$work/cpu" >"$work/want"
"$KONDENSE" convert "$work/src" "$work/cuda" $args --device cuda --lanes 5 >"$work/said"
listing "$work/cuda" >"$work/got"
cmp "$work/want" "$work/got"
grep -q "^device: 1 x " "$work/said"

"$KONDENSE" convert "$work/src" "$work/killed" $args --device cuda >/dev/null 2>&1 &
pid=$!
sleep 3
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
if ! test -e "$work/killed/config.json"; then
    "$KONDENSE" convert "$work/src" "$work/killed" $args --device cuda --resume >/dev/null
fi
listing "$work/killed" >"$work/got"
cmp "$work/want" "$work/got"
echo "the CPU's bytes"
