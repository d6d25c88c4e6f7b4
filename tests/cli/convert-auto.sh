#!/usr/bin/env bash
# Recipe auto: the receipt says for each layer with experts which recipe won and by how much, the same for
# any threads and after kill -9; the winner is the one with the smaller error.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$KONDENSE_TEST_ROOT/tests/data
fail() { echo "convert-auto: $1" >&2; exit 1; }
"$KONDENSE" synth "$work/src" --config "$data/awkward/tiny.json" --seed 7 >/dev/null
args="--calib $data/text/calib.txt --rows 4 --cols 48 --bpw 2.3 --trunk-bpw stored --head-bpw stored --recipe auto --quiet"
"$KONDENSE" convert "$work/src" "$work/one" $args --threads 1 --json - >"$work/said"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["models"]' "$work/said" || fail "$(cat "$work/said")"
python3 - "$work/one/kondense.json" <<'P' || fail "$(cat "$work/one/kondense.json")"
import json, sys
r = json.load(open(sys.argv[1]))
assert [c["layer"] for c in r["auto"]] == [1, 2], r["auto"]
plain = r["fallbacks"]["plain_recipe_won"]
for c in r["auto"]:
    a, b = c["held_out_default"], c["held_out_plain"]
    assert 0 < a < 1 and 0 < b < 1 and a != b, c
    assert c["recipe"] == ("plain" if b < a else "default"), c
    assert any(f"layers.{c['layer']}." in k for k in plain) == (b < a), (c, plain)
P
pause=0.3 tries=0
while ! test -e "$work/two/config.json"; do
    tries=$((tries + 1))
    test $tries -lt 60 || fail "never finished"
    "$KONDENSE" convert "$work/src" "$work/two" $args --threads 2 --resume >/dev/null 2>"$work/err" &
    sleep $pause
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    pause=$(awk "BEGIN { print $pause * 2 }")
done
cmp "$work/one/kondense.json" "$work/two/kondense.json" || fail "another receipt after kill -9"
