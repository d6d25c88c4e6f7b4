#!/usr/bin/env bash
# plan: what it refuses, with which words and exit codes.
# labels: fast
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
refuse() { # exit code, words, arguments
    code=$1 words=$2
    shift 2
    out=$("$KONDENSE" plan "$@" 2>&1 >/dev/null)
    got=$?
    [ $got -eq "$code" ] || { echo "plan-bad: $*: exit $got, not $code: $out" >&2; exit 1; }
    case $out in *"$words"*) ;; *) echo "plan-bad: $*: '$out' does not say '$words'" >&2; exit 1 ;; esac
}
echo '{"format": 1, "name": "x", "tflops": 1, "tiers": [{"kind": "ram", "gib": 1, "gb_s": 1, "speed": 2}]}' >"$tmp/m.json"
echo '{' >"$tmp/broken.json"
refuse 2 "one of spark, gb300, h100" -m sprk
refuse 2 "outside 1 to 1024" -m spark:0
refuse 1 "'speed' is not a key; known are: kind, gib, gb_s, reserve_gib" -m "$tmp/m.json"
echo '{"format": 1, "name": "x", "tflops": 1, "tiers": [{"kind": "ram", "gib": 1, "gb_s": 1}]}' >"$tmp/alone.json"
refuse 1 "devices without 'link_gb_s' cannot share a model" -m "$tmp/alone.json:2"
sed 's/"x"/""/' "$tmp/alone.json" >"$tmp/empty.json"
refuse 1 "'name' is empty" -m "$tmp/empty.json"
sed 's/"tflops"/"tiles_s": 1e-200, "tflops"/' "$tmp/alone.json" >"$tmp/tiny.json"
refuse 1 "'tiles_s' is 1e-200: 0 or at least 0.001" -m "$tmp/tiny.json"
refuse 1 "not valid JSON" -m "$tmp/broken.json"
refuse 1 "/nowhere.json" -m "$tmp/nowhere.json"
refuse 2 "is not 1 to 8 bits" --bpw 9
refuse 2 "is not 1 to 8 bits" --bpw 2,x
refuse 2 "'2,' is not a list of rates" --bpw 2,
refuse 2 "':3' is neither a file nor one of spark" -m :3
refuse 2 "the model has at most 1048576" --context 2000000
refuse 2 "not one of f32|bf16|fp8" --cache int3
refuse 1 "cannot open" "$tmp/none"
refuse 2 "--disk goes with --this" --disk "$tmp"
refuse 2 "only one of" --json - --html -
head -c 100 /dev/zero >"$tmp/no.gguf"
refuse 1 "does not begin with GGUF" "$tmp/no.gguf"
rm "$tmp/no.gguf"
echo '{"model_type": "llama"}' >"$tmp/config.json"
refuse 1 "config.json" "$tmp"
refuse 1 "no/such/dir" --html "$tmp/no/such/dir/p.html"
echo "plan-bad: ok"
