#!/usr/bin/env bash
# labels: fast
# convert --to gguf, and every command that takes a model on what it wrote.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "gguf-nano: $*" >&2; exit 1; }
code() { rc=0; "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?; echo $rc; }
prompt='The old man looked at the sea and said'
golden=', "I am not a man to be a man, but I am not a man to be a man, but'

"$KONDENSE" convert "$nano" "$tmp/dry.gguf" --to gguf --dry-run >"$tmp/out"
[ ! -e "$tmp/dry.gguf" ] || fail "a dry run wrote"
"$KONDENSE" convert "$nano" "$tmp/one.gguf" --to gguf -q --json "$tmp/json" >"$tmp/out"
grep -q '242 tensors, 20810508 parameters, 1 part' "$tmp/out" || fail "$(cat "$tmp/out")"
grep -q "\"file_bytes\": $(stat -c %s "$tmp/one.gguf")" "$tmp/json" || fail "$(cat "$tmp/json")"
"$KONDENSE" convert "$nano" "$tmp/set" --to gguf --split-size 4M -q --json - >"$tmp/out"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["parts"] >= 5' "$tmp/out" || fail "$(cat "$tmp/out")"
set -- "$tmp"/set/k3-nano-BF16-0000?-of-0000?.gguf
[ $# -ge 5 ] || fail "$# parts"

# A file, a part, a folder: the golden continuation, and the golden streams.
cp "$nano/golden.safetensors" "$tmp/set/"
for model in "$tmp/one.gguf" "$3" "$tmp/set"; do
    [ "$("$KONDENSE" generate "$model" -p "$prompt" -n 24)" = "$golden" ] || fail "$model: generate"
done
"$KONDENSE" verify "$tmp/set" >"$tmp/out" || fail "verify: $(cat "$tmp/out")"
grep -q '9 of 9 layers checked' "$tmp/out" || fail "verify: $(cat "$tmp/out")"

"$KONDENSE" inspect "$tmp/one.gguf" --json >"$tmp/json"
python3 - "$tmp/json" <<'PY' || fail "inspect --json"
import json, sys
j = json.load(open(sys.argv[1]))
assert j["storage"] == "gguf" and j["tensor_count"] == 242 and j["runs"], j
assert not (j["missing_tensors"] or j["odd_shapes"] or j["odd_dtypes"] or j["unknown_tensors"]), j
assert j["parameters"]["total"] == 20810508 and j["bits"]["experts"]["real"] == 4.25, j
assert {d["what"] for d in j["dtypes"]} == {"F32", "BF16", "MXFP4"}, j
PY

# Measured like any other model: nothing lost with BF16, a little with Q8_0.
"$KONDENSE" check "$nano" "$tmp/one.gguf" --text "$KONDENSE_TEST_DATA/text/eval.txt" --rows 2 --cols 64 >"$tmp/out"
grep -q 'KLD         0.00000 nats' "$tmp/out" || fail "check: $(cat "$tmp/out")"
grep -q 'experts 4.250 (real 4.250)' "$tmp/out" || fail "check: $(cat "$tmp/out")"
"$KONDENSE" convert "$nano" "$tmp/q8.gguf" --to gguf --trunk-type q8_0 -q >/dev/null
"$KONDENSE" check "$nano" "$tmp/q8.gguf" --text "$KONDENSE_TEST_DATA/text/eval.txt" --rows 2 --cols 64 \
    --require 'kld=0.01,top1=0.95' >"$tmp/out" || fail "check of Q8_0: $(cat "$tmp/out")"
[ ! -e "$tmp/kondense.json" ] || fail "a verdict beside a GGUF"

# Chopped bytewise, anywhere: one file again for every command, whichever piece is named.
mkdir "$tmp/chop"
python3 - "$tmp/one.gguf" "$tmp/chop" <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
ends = [0, 100, 1234567, 5000001, 4096 * 3000, len(data)]
for i in range(5):
    open("%s/n.gguf.part-%02d-of-05" % (sys.argv[2], i + 1), "wb").write(data[ends[i]:ends[i + 1]])
PY
for model in "$tmp/chop" "$tmp/chop/n.gguf.part-01-of-05" "$tmp/chop/n.gguf.part-04-of-05"; do
    [ "$("$KONDENSE" generate "$model" -p "$prompt" -n 24)" = "$golden" ] || fail "$model: generate"
done
"$KONDENSE" inspect "$tmp/chop" --json | grep -v '"path"\|"name"' >"$tmp/a" # sizes are those of the whole
"$KONDENSE" inspect "$tmp/one.gguf" --json | grep -v '"path"\|"name"' | diff - "$tmp/a" >"$tmp/out" || fail "inspect: $(cat "$tmp/out")"
"$KONDENSE" check "$nano" "$tmp/chop" --text "$KONDENSE_TEST_DATA/text/eval.txt" --rows 2 --cols 64 >"$tmp/out"
grep -q 'KLD         0.00000 nats' "$tmp/out" || fail "check of pieces: $(cat "$tmp/out")"
"$KONDENSE" check "$tmp/chop" "$tmp/one.gguf" --text "$KONDENSE_TEST_DATA/text/eval.txt" --rows 2 --cols 64 --save-ref "$tmp/ref" >"$tmp/out"
"$KONDENSE" check "$tmp/one.gguf" "$tmp/one.gguf" --ref "$tmp/ref" >"$tmp/out" || fail "pieces are another source: $(cat "$tmp/out")"
"$KONDENSE" slice "$tmp/chop/n.gguf.part-02-of-05" "$tmp/all.gguf" -q >/dev/null && cmp "$tmp/all.gguf" "$tmp/one.gguf" || fail "a slice of all"
"$KONDENSE" plan "$tmp/chop" -m pc --brief | grep -q "fits as stored" || fail "plan"
rm "$tmp/chop/n.gguf.part-03-of-05"
for command in "generate -p x" receipt; do
    [ "$(code "$KONDENSE" $command "$tmp/chop")" = 1 ] || fail "$command without a piece"
    grep -q 'n.gguf.part-03-of-05' "$tmp/err" || fail "$command: $(cat "$tmp/err")"
done

# Refusals.
[ "$(code "$KONDENSE" convert "$nano" "$tmp/one.gguf" --to gguf -q)" != 0 ] || fail "wrote over a file"
grep -q 'is there already' "$tmp/err" || fail "$(cat "$tmp/err")"
[ "$(code "$KONDENSE" convert "$tmp/one.gguf" "$tmp/x" --calib "$nano/config.json")" = 2 ] || fail "EXL3 from GGUF"
grep -q 'is a GGUF' "$tmp/err" || fail "$(cat "$tmp/err")"
[ "$(code "$KONDENSE" convert "$nano" "$tmp/x.gguf" --to gguf --bpw 2)" = 2 ] || fail "--bpw with --to gguf"
[ "$(code "$KONDENSE" convert "$nano" "$tmp/y-00001-of-00002.gguf" --to gguf -q)" = 2 ] || fail "a part's name"
grep -q 'one part of 2' "$tmp/err" && [ ! -e "$tmp/y-00001-of-00002.gguf" ] || fail "$(cat "$tmp/err")"
mkdir "$tmp/bare" # a dry run wants the config and the index, no shard; and the source is no place for it
cp "$nano/config.json" "$nano/model.safetensors.index.json" "$nano/tiktoken.model" "$nano/tokenizer_config.json" "$tmp/bare/"
[ "$(code "$KONDENSE" convert "$tmp/bare" "$tmp/bare/" --to gguf --dry-run)" = 2 ] || fail "into the source"
"$KONDENSE" convert "$nano" "$tmp/n.gguf" --to gguf -n | tail -n 2 >"$tmp/want"
"$KONDENSE" convert "$tmp/bare" "$tmp/n.gguf" --to gguf -n | tail -n 2 | diff - "$tmp/want" || fail "a dry run without shards"
rm "$2" # and nobody knows what the parts left over were made of
[ "$(code "$KONDENSE" convert "$nano" "$tmp/set" --to gguf --split-size 4M --resume -q)" = 2 ] || fail "parts of an unknown source kept"
[ "$(code "$KONDENSE" generate "$tmp/set" -p x -n 1)" = 1 ] || fail "a set without one part"
grep -qF "$2" "$tmp/err" || fail "$(cat "$tmp/err")"
echo "gguf-nano: ok"
