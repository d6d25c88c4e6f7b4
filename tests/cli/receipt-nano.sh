#!/usr/bin/env bash
# labels: fast
# receipt of safetensors, GGUF and slices: a ladder, claims that end in exit code 3, a verdict that was meant.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "receipt-nano: $*" >&2; exit 1; }
code() { rc=0; "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?; echo $rc; }
has() { grep -qF -- "$1" "$tmp/out" || fail "no '$1' in: $(cat "$tmp/out")"; }

"$KONDENSE" convert "$nano" "$tmp/k3.gguf" --to gguf -q >/dev/null
"$KONDENSE" slice "$nano" "$tmp/s" --layers 4 --experts 8 -q >/dev/null
"$KONDENSE" slice "$tmp/k3.gguf" "$tmp/s.gguf" --layers 4 --experts 8 --experts-used 2 --requant Q1_0 -q >/dev/null

# Packed codes are two values a byte, padding of A_log is nothing: what inspect of the GGUF counts, and vision.
[ "$(code "$KONDENSE" receipt "$nano" --json "$tmp/j" --html "$tmp/h")" = 0 ] || fail "$(cat "$tmp/err")"
has 'NOT KNOWN   nobody declares'
has 'quality gate  NOT MEASURED'
[ "$(code "$KONDENSE" receipt "$tmp/k3.gguf")" = 0 ] || fail "$(cat "$tmp/err")"
has '20,810,508 parameters present'
python3 - "$tmp/j" "$tmp/h" <<'PY' || fail "JSON or page"
import json, re, sys
r = json.load(open(sys.argv[1]))["receipts"][0]
assert r["parameters"]["present"] - r["parameters"]["vision"] == 20815372, r["parameters"]
assert {t["type"]: t["elements"] for t in r["types"]}["MXFP4"] == 8 * 32 * 3 * 128 * 128, r["types"]
assert sum(t["bytes"] for t in r["types"]) == r["data_bytes"]
page = open(sys.argv[2]).read()
assert not re.search(r"https?://|<script", page) and "NOT MEASURED" in page
PY

# A slice says what it was cut from; beside its source it says the same.
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf")" = 0 ] || fail "$(cat "$tmp/err")"
has 'slice record INTACT'
has '4 of 9 (3 KDA, 1 MLA; 1 dense); residual blocks whole'
has '9.3750 % of the whole model'
has 'BF16, MXFP4, F32 > Q1_0'
cp "$tmp/out" "$tmp/alone"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --of "$tmp/k3.gguf")" = 0 ] || fail "$(cat "$tmp/err")"
for what in 'layers  ' 'experts  ' 'active  '; do
    [ "$(grep "$what" "$tmp/alone")" = "$(grep "$what" "$tmp/out")" ] || fail "$(diff "$tmp/alone" "$tmp/out")"
done

# Someone makes the record kinder.
cp "$tmp/s/slice.json" "$tmp/keep"
sed -i 's/"source_layers": 9/"source_layers": 4/' "$tmp/s/slice.json"
[ "$(code "$KONDENSE" receipt "$tmp/s")" = 0 ] || fail "$(cat "$tmp/err")"
has 'slice record EDITED, not used'
cp "$tmp/keep" "$tmp/s/slice.json"

for bad in 's/"layers_kept": .*/"layers_kept": [],/' 's/"layers_kept": .*/"layers_kept": [0, 1, 99],/' 's/"expert_lists": 1/"expert_lists": 3/' \
    's/"source_experts": 32/"source_experts": -1/' 's/"tool": .*/"tool": 7,/' 's/^{/[/'; do
    sed -i "$bad" "$tmp/s/slice.json"
    [ "$(code "$KONDENSE" receipt "$tmp/s")" = 1 ] || fail "$bad: $(cat "$tmp/out")"
    cp "$tmp/keep" "$tmp/s/slice.json"
done
: >"$tmp/empty.gguf"
[ "$(code "$KONDENSE" receipt "$tmp/empty.gguf")" = 1 ] || fail "an empty file"
grep -q 'is empty' "$tmp/err" || fail "$(cat "$tmp/err")"

# A ladder, and what ends in exit code 3.
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" "$tmp/s" "$nano" --of "$nano")" = 0 ] || fail "$(cat "$tmp/err")"
[ "$(sed -n '/^ladder/,$p' "$tmp/out" | wc -l)" = 4 ] || fail "$(cat "$tmp/out")"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --claim 0.0001 --declared-params 2.8e12)" = 3 ] || fail "--claim"
has 'CONTRADICTED'
real=$("$KONDENSE" receipt "$tmp/s.gguf" | awk '/REAL/ {print $3}')
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --claim "$real")" = 0 ] || fail "$(cat "$tmp/err")"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --claim 20.8M)" = 3 ] || fail "--claim 20.8M"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --require routed=0.9)" = 3 ] || fail "--require"
grep -q 'routed 0.09375 is under 0.9' "$tmp/err" || fail "$(cat "$tmp/err")"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --require routed=0.09,missing=0.9,claims)" = 0 ] || fail "$(cat "$tmp/err")"
[ "$(code "$KONDENSE" receipt "$tmp/s.gguf" --require nothing=1)" = 2 ] || fail "a figure that is none"
[ "$(code "$KONDENSE" receipt "$tmp/nowhere")" != 0 ] || fail "a path that is none"

# The gate of check: it fails as designed where experts were taken out, and plainly where not.
eval=$KONDENSE_TEST_DATA/text/eval.txt
[ "$(code "$KONDENSE" check "$nano" "$nano" --text "$eval" --rows 1 --cols 32 --require top1=0.5 --json "$tmp/same.json" --no-verdict)" = 0 ] ||
    fail "check: $(cat "$tmp/err")"
[ "$(code "$KONDENSE" receipt "$nano" --gate "$tmp/same.json" --require gate)" = 0 ] || fail "$(cat "$tmp/err")"
has 'quality gate  PASS'
printf '{"verdict": {"pass": false, "kld": {"mean": 3.5}, "top1": 0.125}}' >"$tmp/s/kondense.json"
[ "$(code "$KONDENSE" receipt "$tmp/s" --require gate)" = 3 ] || fail "a failed gate"
has 'quality gate  FAIL AS DESIGNED; KLD 3.50000; same top-1 12.50 %'
[ "$(code "$KONDENSE" receipt "$nano" --gate "$tmp/s/kondense.json")" = 0 ] || fail "$(cat "$tmp/err")"
grep -qE 'quality gate  FAIL;' "$tmp/out" || fail "$(cat "$tmp/out")"
echo "receipt-nano: ok"
