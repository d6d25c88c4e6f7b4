#!/usr/bin/env bash
# pilot: one layer of a made model, with the layers before it and without; limits as exit codes; nothing is
# left behind, by a kill neither.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$KONDENSE_TEST_ROOT/tests/data
mkdir "$work/tmp"
export TMPDIR=$work/tmp
args="--rows 4 --cols 16 --quiet"
fail() { echo "pilot-layer: $1" >&2; exit 1; }
fails() { # CODE WORDS command...
    local want=$1 words=$2 code=0
    shift 2
    "$KONDENSE" "$@" >"$work/out" 2>"$work/err" || code=$?
    test $code -eq "$want" || { cat "$work/err"; fail "exit code $code, not $want: $*"; }
    test "$(wc -l <"$work/err")" -eq 1 && grep -q -- "$words" "$work/err" || { cat "$work/err"; fail "$*"; }
    test -z "$(ls "$TMPDIR")" || fail "left something: $*"
}
"$KONDENSE" synth "$work/src" --config "$data/awkward/tiny.json" --seed 3 >/dev/null

# All there: the source's own inputs. The screen is one screen, the page has no address but its own.
"$KONDENSE" pilot "$work/src" --layer 2 --calib "$data/text/calib.txt" $args --json "$work/real.json" \
    --html "$work/real.html" >"$work/real.txt"
test "$(wc -l <"$work/real.txt")" -le 24 || fail "more than a screen"
test "$(awk '{ if (length > n) n = length } END { print n }' "$work/real.txt")" -le 100 || fail "too wide"
grep -q "source's own, 4 rows of 16" "$work/real.txt" || fail "inputs: $(cat "$work/real.txt")"
grep -q "this machine .*measured" "$work/real.txt" || fail "no hours"
grep -q "</html>" "$work/real.html" && ! grep -q "https\?:" "$work/real.html" || fail "page"
# Rows in files, where a folder is named: the same layer. What it needs is said before.
"$KONDENSE" pilot "$work/src" --layer 2 --calib "$data/text/calib.txt" ${args% --quiet} --work "$work/tmp" \
    --json "$work/files.json" >"$work/files.txt" 2>/dev/null
grep -q "^needs .* of memory, .* of disk in $work/tmp/.* of it the rows of tokens)$" "$work/files.txt" || fail "needs: $(cat "$work/files.txt")"
errors() { grep -A4 '"error"' "$1"; }
test "$(errors "$work/files.json")" = "$(errors "$work/real.json")" || fail "other rows in files"
# The layer's shard alone: made inputs, said so; a sample; another machine, by the plan's ratios.
mkdir "$work/part"
cp "$work/src"/*.json "$work/src/tiktoken.model" "$work/src/model-00003-of-000004.safetensors" "$work/part"
# Past both limits: exit code 3, the report is there all the same.
fails 3 "memory: .* are more than the 1.0.* kB allowed" pilot "$work/part" --layer 2 --calib "$data/text/calib.txt" \
    --experts 1 $args --json "$work/made.json" -m spark:8,gb300 --on h200 --max-hours 0.000001 --memory 1K
grep -q "limit: hours: .* this machine are more than the 1e-06 allowed" "$work/out" || fail "no hours: $(cat "$work/out")"
python3 - "$work" <<'P' || fail "JSON"
import json, sys
r, m = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("real", "made"))
assert r["inputs"] == "real" and m["inputs"] == "made" and "is not there" in m["why_made"], m
assert r["experts_encoded"] == 2 and m["experts_encoded"] == 1 and r["attention"] == "KDA"
assert r["error"]["experts"] == 2 and 0 < r["error"]["default"] < r["error"]["plain"], r["error"]
for p in r, m:
    parts = sum(v for s in ("trunk", "experts") for k, v in p[s].items() if k != "tiles_s")
    assert abs(parts + p["compare_s"] - p["wall_s"]) < 0.1 * p["wall_s"] + 0.02, (parts, p)
    t = p["experts"]["search_s"] * 2 / p["experts_encoded"] + p["read_s"]
    assert p["experts"]["search_s"] > 0 and p["layer_s"] > t
    assert p["peak_bytes"] > 1 << 20 and p["planned_peak_bytes"] > 1 << 20  # sanitizers add to one of them
here, there = m["whole_run"]
assert here["basis"] == "measured" and there["basis"] == "scaled" and len(r["whole_run"]) == 1
assert abs(sum(v for k, v in here.items() if k.endswith("_h") and k != "total_h") - here["total_h"]) < 1e-9
# Two layers of two experts, all tensors' tiles alike: the run's search is the layer's, twice.
want = 2 * 2 / m["experts_encoded"] * m["experts"]["search_s"] / 3600
assert abs(here["encode_h"] - want) < 0.01 * want, (here, want)
# Nine machines: at most as long as the plan's ratio of their tiles to one H200's.
assert there["encode_h"] < here["encode_h"] * 4 and there["read_h"] == here["read_h"]
P
test "$(ls -A "$work/part" | wc -l)" -eq 6 || fail "changed the source: $(ls -A "$work/part")"

# Refusals.
fails 1 "model-00002-of-000004.safetensors is not there" pilot "$work/part" --layer 1 $args
fails 2 "has no experts" pilot "$work/part" --layer 0 $args
fails 2 "work '': name a folder" pilot "$work/src" $args --work ""
fails 2 "layers 0 to 2" pilot "$work/part" --layer 3 $args
fails 2 "not a list" pilot "$work/part" $args -m spark,,gb300
fails 2 "neither a file nor one of" pilot "$work/part" $args -m nosuch
fails 1 "cannot make a folder" pilot "$work/part" --layer 2 $args --work "$work/nowhere"
fails 1 "cannot write" pilot "$work/part" --layer 2 $args --experts 1 --json "$work/nowhere/x.json"
! grep -q "measured" "$work/out" || fail "a report that cannot be written was told after the work"
fails 2 "cannot both go to" pilot "$work/part" --layer 2 $args --json "$work/x" --html "$work/x"
fails 1 "cannot open\|No such" pilot "$work/nowhere" $args
"$KONDENSE" synth "$work/x" --config "$data/awkward/tiny.json" --format exl3 >/dev/null
fails 2 "codes already" pilot "$work/x" $args

# Rows of tokens have no room in memory: there are files.
code=0
(ulimit -v 250000; exec "$KONDENSE" pilot "$data/k3-nano" --layer 2 --rows 250 --cols 512 -t 1 --quiet) >/dev/null \
    2>"$work/err" || code=$?
test $code -eq 1 && grep -q "^kondense pilot: .*; --work DIR keeps" "$work/err" || fail "no room: $code $(cat "$work/err")"

# Stopped: its own exit code, nothing left; killed: nothing beside the source or in it.
"$KONDENSE" pilot "$data/k3-nano" --layer 2 --rows 4 --cols 32 --quiet >/dev/null 2>"$work/err" &
pid=$!
until ls "$TMPDIR"/*/.work/002 >/dev/null 2>&1; do sleep 0.02; done
kill -TERM $pid
code=0
wait $pid || code=$?
test $code -eq 4 && grep -q "nothing is left" "$work/err" || { cat "$work/err"; fail "SIGTERM: $code"; }
test -z "$(ls "$TMPDIR")" || fail "stopped and left something"
echo "pilot-layer: ok"
