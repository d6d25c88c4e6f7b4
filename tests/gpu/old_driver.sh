#!/usr/bin/env bash
# A driver that is too old for this build (old_driver.c says it knows CUDA 12.4): one line that says which is there
# and which is needed, and offers the CPU, of every command with --device.
set -eu
nano=$KONDENSE_TEST_ROOT/tests/data/k3-nano
text=$KONDENSE_TEST_ROOT/tests/data/text
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$KONDENSE_DRIVER
for command in "convert $nano $tmp/none --calib $text/calib.txt" "pilot $nano" "check $nano $nano --text $text/eval.txt" \
    "generate $nano --ids 1,2" "chat $nano -p hello" "bench encode" "bench forward --model $nano"; do
    code=0
    "$KONDENSE" $command --device cuda >/dev/null 2>"$tmp/err" </dev/null || code=$?
    test $code -eq 1 && test "$(grep -c '^kondense ' "$tmp/err")" -eq 1 &&
        grep -q 'driver knows CUDA 12.4, this kondense needs 1[3-9]\.[0-9]*: renew .*(--device cpu)$' "$tmp/err" ||
        { echo "$command: $code"; cat "$tmp/err"; exit 1; }
done
test ! -e "$tmp/none" || { echo "something was begun"; exit 1; }
echo "old_driver: ok"
