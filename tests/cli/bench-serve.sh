#!/usr/bin/env bash
# kondense bench serve: all figures are there, drafts change no answer, --require decides the exit code. How
# high the figures are is not tested: this machine may be busy.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
run() { "$KONDENSE" bench serve "$model" --seconds 0.02 --prompt 200 --passages 1 "$@"; }
for i in $(seq 400); do echo "line $((i % 7)) of a text that says the same again and again"; done >"$tmp/text.txt"
run --text "$tmp/text.txt" --require toks=0.001,ttft=1000,overhead=1 --json >"$tmp/json" || fail "exit $?"
python3 - "$tmp/json" <<'E' || fail "$(head -c 3000 "$tmp/json")"
import json, sys
r = json.load(open(sys.argv[1]))["results"]
f = {x["figure"]: x["value"] for x in r if "figure" in x}
assert set(f) == {"toks", "batch", "ratio", "share", "overhead", "ttft", "warm"}, f
assert all(0 < v["min"] <= v["median"] <= v["max"] and v["repeats"] == 5 for v in f.values()), f
assert f["overhead"]["max"] < 1, f
b = next(x for x in r if "bound_one_tokens_s" in x)
assert b["bound_one_tokens_s"] > 0 and b["bound_batch_tokens_s"] > 0 and 200 <= b["prompt_tokens"] <= 400, b
assert 4 <= b["experts_a_layer"] <= 32, b
rates = next(x for x in r if "rates" in x)["rates"]
assert sum(x["expert_weights"] for x in rates) > 1e6 and sum(x["trunk_weights"] for x in rates) > 1e6, rates
cpu = next(x for x in r if "engine_cpu_s" in x)
assert cpu["engine_cpu_s"] > 0 and cpu["client_cpu_s"] > 0 and cpu["events"] >= 0.5 * cpu["tokens"] > 0, cpu
d = [x for x in r if "text" in x]
assert [x["temperature"] for x in d] == [0, 1] and all(x["tokens_s"] > 0 and x["tokens_s_drafts"] > 0 for x in d), d
assert d[0]["acceptance"] > 0 and d[0]["steps_with_drafts"] > 0, d
E
rc=0; run --require toks=1e9,warm=1e-9 >"$tmp/out" 2>"$tmp/err" || rc=$?
[ $rc = 3 ] || fail "unmet requirements: exit $rc"
grep -q "toks is .*at least 1e+09, warm is .*at most 1e-09" "$tmp/err" || fail "$(cat "$tmp/err")"
grep -q "of the bound" "$tmp/out" || fail "$(cat "$tmp/out")"
bad() { rc=0; "$KONDENSE" bench serve "$@" >"$tmp/out" 2>&1 || rc=$?; [ $rc = 2 ] || fail "bench serve $*: exit $rc, $(cat "$tmp/out")"; }
bad
bad "$model" --model "$model"
bad "$model" --require speed=3
bad "$model" --require toks
bad "$model" --require toks=fast
exit 0
