# generate: the golden continuations, JSON, the trace, determinism, and what it refuses.
# labels: fast
set -eu
nano=$KONDENSE_TEST_ROOT/tests/data/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "$*" >&2; exit 1; }
# code COMMAND...: its exit code
code() { rc=0; "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?; echo $rc; }

"$KONDENSE" generate "$nano" -p 'The old man looked at the sea and said' -n 24 >"$tmp/text"
printf '%s\n' ', "I am not a man to be a man, but I am not a man to be a man, but' | cmp - "$tmp/text" || fail "golden text"

"$KONDENSE" generate "$nano" --ids 1108,903,7,64,11,277,1602,306,679 -n 4 --json --trace "$tmp/trace" >"$tmp/json"
tr -d ' \n' <"$tmp/json" | grep -q '"ids":\[387,65,11,277\],"text":"(b,b","prompt_tokens":9,"finish":"length"' || fail "JSON: $(cat "$tmp/json")"
# 9 prompt tokens and 3 more, 8 layers with experts, 4 experts, 8 bytes
[ "$(stat -c %s "$tmp/trace")" = $((12 * 8 * 4 * 8)) ] || fail "trace size"
# The first call: nine tokens of layer 1, then layer 2.
[ "$(od -An -tu4 -w8 -v "$tmp/trace" | awk 'NR <= 72 {n[$1]++} END {print n[1], n[2]}')" = "36 36" ] || fail "trace order"

"$KONDENSE" generate "$nano" --ids 529,955 -n 20 --temp 1 --top-p 0.95 --seed 7 -t 1 >"$tmp/a"
"$KONDENSE" generate "$nano" --ids 529,955 -n 20 --temp 1 --top-p 0.95 --seed 7 -t 2 >"$tmp/b"
"$KONDENSE" generate "$nano" --ids 529,955 -n 20 --temp 1 --top-p 0.95 --seed 8 -t 2 >"$tmp/c"
cmp "$tmp/a" "$tmp/b" || fail "the same seed gave another text"
! cmp -s "$tmp/a" "$tmp/c" || fail "another seed gave the same text"
"$KONDENSE" generate "$nano" --ids 529,955 -n 20 --experts-used 1 >"$tmp/one"
"$KONDENSE" generate "$nano" --ids 529,955 -n 20 >"$tmp/four"
! cmp -s "$tmp/one" "$tmp/four" || fail "--experts-used does nothing"
# Nothing here is EXL3, which alone has fast products.
"$KONDENSE" generate "$nano" --ids 529,955 -n 20 --exact | cmp - "$tmp/four" || fail "--exact is another text without EXL3"

[ "$(code "$KONDENSE" generate "$nano" -n 3)" = 2 ] || fail "no prompt"
[ "$(code "$KONDENSE" generate "$nano" --ids 1,x -n 3)" = 2 ] || fail "bad id"
[ "$(code "$KONDENSE" generate "$nano" --ids 4096 -n 3)" = 2 ] || fail "id outside the vocabulary"
[ "$(code "$KONDENSE" generate "$nano" --ids 1 --experts-used 5)" = 2 ] || fail "too many experts"
[ "$(code "$KONDENSE" generate "$tmp/none" --ids 1)" = 1 ] || fail "no model"
[ "$(code "$KONDENSE" generate "$tmp/none" -p hi)" = 1 ] && grep -q "none': it is not there" "$tmp/err" || fail "no model, for a text"
# A tensor nobody knows is refused by name.
cp -r "$nano" "$tmp/odd"
chmod -R u+w "$tmp/odd"
sed -i 's/layers\.1\.block_sparse_moe\.routed_expert_norm/layers.1.block_sparse_moe.routed_expert_warp/g' \
    "$tmp/odd/model.safetensors.index.json" "$tmp"/odd/model-*.safetensors
[ "$(code "$KONDENSE" generate "$tmp/odd" --ids 1)" = 1 ] || fail "an unknown tensor"
grep -q 'routed_expert_warp' "$tmp/err" || fail "the unknown tensor is not named: $(cat "$tmp/err")"
