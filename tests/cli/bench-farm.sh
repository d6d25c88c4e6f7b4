#!/usr/bin/env bash
# kondense bench farm: the ledger adds up over K3's first layers, the plan's hours come out of the simulation,
# and --require decides the exit code. How fast the ledger is, is not tested: this machine may be busy.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
refused() { # WHY ARGUMENTS...
    local why=$1
    shift
    "$KONDENSE" bench farm "$@" >/dev/null 2>"$tmp/err"
    [ $? = 2 ] && grep -q "$why" "$tmp/err" || fail "$*: $(cat "$tmp/err")"
}
refused "is not pgbench or memory" --require speed=1
refused "not a number" --require memory=x
refused "neither a file" --units nonsense
refused "neither a file" --units 100
refused "needs more than 10 layers" --layers 1 --require memory=5
refused "needs --ledger" --layers 1 --require pgbench=0.5
# The ledger syncs each result: 9,000 times a disk's delay, which is not what is tested.
[ -w /dev/shm ] && export TMPDIR=/dev/shm
# No memory of the ledger's shrinks to a hundredth: the bar is missed, and the figures are there.
"$KONDENSE" bench farm --layers 11 --require memory=-99 --units 0,351000/47,spark:2 --json >"$tmp/json" 2>"$tmp/err"
[ $? = 3 ] || fail "exit code; $(cat "$tmp/err")"
grep -q "memory is" "$tmp/err" || fail "$(cat "$tmp/err")"
python3 - "$tmp/json" <<'E' || fail "$(head -c 3000 "$tmp/json")"
import json, sys
r = json.load(open(sys.argv[1]))["results"]
ledger, = (x for x in r if x["name"] == "ledger")
# Layer 0 is dense: 4 + 1 + 2 + 1 tensors. The others have 896 experts and 10 or (MLA, two in eleven) 9... tensors.
assert ledger["layers"] == 11 and ledger["jobs"] == 8 + 10 * 896 + 8 * 10 + 2 * 9, ledger
assert ledger["transactions_per_s"] > 0 and ledger["memory_layer_10"] > 0, ledger
sims = [x for x in r if x["name"] == "simulation"]
hours = {(x["rates"], x["mode"]): x["hours"] for x in sims if x["rates"].startswith("plan")}
for key, want in ((("plan low", "serial"), 13.7), (("plan high", "serial"), 27.8), (("plan low", "streamed"), 9.5),
                  (("plan high", "streamed"), 16), (("plan low", "expert"), 9.4), (("plan high", "expert"), 15.2)):
    assert abs(hours[key] / want - 1) < 0.025, (key, hours[key], want)
names = {x["machines"] for x in sims}
assert {"GB300 + 8 Sparks", "8 Sparks", "one Spark", "this machine", "one H200", "0,351000/47,spark:2"} <= names, names
for x in sims:
    parts = sum(v for k, v in x.items() if k.endswith("_h"))
    assert abs(parts - x["hours"]) < 1e-6 * x["hours"] + 1e-3 and x["limit"], x
low = {x["machines"]: x["hours"] for x in sims if x["rates"] == "low"}
assert low["GB300 + 8 Sparks"] < low["8 Sparks"] < low["one Spark"] < low["this machine"], low
# What was measured on a GPU, and what a GB10's shared memory makes of it.
seen = {(x["machines"], x["rates"]): x for x in sims}
for name in ("GB300 + 8 Sparks", "8 Sparks", "one Spark"):
    best, bound = seen[name, "measured"], seen[name, "its way"]
    assert low[name] < best["hours"] < bound["hours"] and best["encoding_h"] < bound["encoding_h"], (best, bound)
h200, = (x for x in r if x["name"] == "rates" and x["machine"] == "H200")
assert h200["tiles_source"] == h200["others_source"] == "measured" and h200["sums_tflops"] == 35, h200
# 10.4 billion tiles with the searches for their scales (82,432 experts of 129,024 tiles, 1.146).
want = 82432 * 129024 * 1.146 / h200["tiles_per_s"] / 3600
assert abs(seen["one H200", "measured"]["encoding_h"] / want - 1) < 1e-3, (want, seen["one H200", "measured"])
here, = (x for x in r if x["name"] == "rates" and x["machine"].startswith("this machine"))
assert here["tiles_per_s"] > 0 and "measured here" in here["tiles_source"], here
E
echo ok
