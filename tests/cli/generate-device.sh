# labels: gpu
# generate, chat, check, serve and bench forward --device: what is refused, one line that offers the CPU where no such device
# is, and on a machine with one the CPU's text.
set -eu
nano=$KONDENSE_TEST_ROOT/tests/data/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "$*" >&2; cat "$tmp/err" >&2; exit 1; }
# code COMMAND...: its exit code
code() { rc=0; "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || rc=$?; echo $rc; }

for text in gpu cuda: cuda:0,1; do
    for command in "generate $nano --ids 1" "serve $nano"; do
        [ "$(code "$KONDENSE" $command --device $text)" = 2 ] || fail "$command --device $text"
        grep -q -- --device "$tmp/err" || fail "$command --device $text"
    done
done
for command in "generate $nano --ids 1,2" "chat $nano -p hello" "bench forward --model $nano -s 0.01" \
    "bench encode -s 0.01 --rate 2" "bench decode -s 0.01 --rate 2" \
    "check $nano $nano --text $KONDENSE_TEST_ROOT/tests/data/text/eval.txt --rows 1" "serve $nano --port 0"; do
    [ "$(code "$KONDENSE" $command --device cuda:1000)" = 1 ] || fail "$command: exit code"
    [ "$(grep -c '^kondense ' "$tmp/err")" = 1 ] || fail "$command: not one line"
    grep -q -- "--device cpu" "$tmp/err" || fail "$command: the CPU is not offered"
done
[ "$(code "$KONDENSE" bench forward --shape k3)" = 2 ] || fail "a shape on the CPU"
[ "$(code "$KONDENSE" bench forward --model "$nano" --shape k3)" = 2 ] || fail "a model and a shape"
[ "$(code "$KONDENSE" bench encode --blocks 48)" = 2 ] || fail "blocks of the CPU"
[ "$(code "$KONDENSE" generate "$nano" -p 'It was' -n 16 --device cpu)" = 0 ] || fail "--device cpu"
mv "$tmp/out" "$tmp/want"

if [ "$(code "$KONDENSE" generate "$nano" -p 'It was' -n 16 --device cuda)" != 0 ]; then
    grep -q -- "--device cpu" "$tmp/err" || fail "the CPU is not offered"
    echo "no device: skipped"
    exit 77
fi
cmp "$tmp/out" "$tmp/want" || fail "the device goes on otherwise"
"$KONDENSE" chat "$nano" -p 'hello' -n 12 --temp 0 >"$tmp/want"
"$KONDENSE" chat "$nano" -p 'hello' -n 12 --temp 0 --device cuda >"$tmp/out"
cmp "$tmp/out" "$tmp/want" || fail "the device answers otherwise"
