#!/usr/bin/env bash
# A conversion killed at many moments and resumed gives the bytes of one that ran through; so does
# another thread count and another instruction set. The shape is awkward on purpose: three heads, widths
# that are no multiples of 128, an odd vocabulary. Trunk and head stay as stored, which are a third of
# the work: convert-resume-trunk.sh, a long test, quantizes them too.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
calib=$KONDENSE_TEST_ROOT/tests/data/text/calib.txt
args="--calib $calib --rows 6 --cols 96 --bpw 2.3 --quiet ${RESUME_TRUNK---trunk-bpw stored --head-bpw stored}"
"$KONDENSE" synth "$work/src" --config "$KONDENSE_TEST_ROOT/tests/data/awkward/short.json" --seed 7 >/dev/null

listing() { (cd "$1" && find . -type f ! -name convert.log ! -path './.work/*' -print0 | sort -z | xargs -0 sha256sum); }

"$KONDENSE" convert "$work/src" "$work/whole" $args >"$work/whole.txt"
listing "$work/whole" >"$work/want"
test ! -e "$work/whole/.work"

# The printed total is the written one, to the byte.
said=$(sed -n 's/^ *weight files *\([0-9]*\) bytes.*/\1/p' "$work/whole.txt")
wrote=$(cat "$work"/whole/*.safetensors | wc -c)
test "$said" = "$wrote" || { echo "predicted $said bytes, wrote $wrote"; exit 1; }

# Killed after growing times, resumed until done; one thread and plain C in between.
pause=0.4 tries=0
while ! test -e "$work/killed/config.json"; do
    tries=$((tries + 1))
    test $tries -lt 60 || { echo "never finished"; exit 1; }
    threads=$((tries % 2 + 1))
    "$KONDENSE" convert "$work/src" "$work/killed" $args --resume --threads $threads >/dev/null 2>"$work/err" &
    pid=$!
    sleep $pause
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    pause=$(awk "BEGIN { print $pause * 1.6 }")
done
listing "$work/killed" >"$work/got"
cmp "$work/want" "$work/got" || { diff "$work/want" "$work/got" | head; exit 1; }
test $tries -gt 3 || { echo "was hardly killed: $tries runs"; exit 1; }

# A polite stop has its own exit code, and without --resume an unfinished folder is refused.
"$KONDENSE" convert "$work/src" "$work/stopped" $args >/dev/null 2>&1 &
pid=$!
until compgen -G "$work/stopped/.work/*/*.unit" >/dev/null || ! kill -0 $pid; do sleep 0.01; done
kill -TERM $pid
code=0
wait $pid || code=$?
test $code -eq 4 || { echo "SIGTERM gave exit code $code"; exit 1; }
code=0
"$KONDENSE" convert "$work/src" "$work/stopped" $args >/dev/null 2>"$work/err" || code=$?
test $code -eq 2 && grep -q -- --resume "$work/err" || { cat "$work/err"; exit 1; }
# A disk that takes no more: one line with its file and how to go on.
code=0
(ulimit -f 400; exec "$KONDENSE" convert "$work/src" "$work/full" $args) >/dev/null 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 && grep -q "full/.*File too large; .*--resume$" "$work/err" ||
    { echo "no room: $code"; cat "$work/err"; exit 1; }
# Other settings are refused too.
code=0
"$KONDENSE" convert "$work/src" "$work/stopped" $args --seed 5 --resume >/dev/null 2>"$work/err" || code=$?
test $code -eq 2 && grep -q "other settings" "$work/err" || { cat "$work/err"; exit 1; }
# And a finished one.
code=0
"$KONDENSE" convert "$work/src" "$work/whole" $args --resume >/dev/null 2>"$work/err" || code=$?
test $code -eq 2 && grep -q "finished" "$work/err" || { cat "$work/err"; exit 1; }
echo "resumed $tries times: same bytes"
