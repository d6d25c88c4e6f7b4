#!/usr/bin/env bash
# plan: K3 without any file, machines side by side, JSON and HTML; sizes held against a conversion's plan.
set -eu
data=$KONDENSE_TEST_ROOT/tests/data
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "plan-k3: $1" >&2; exit 1; }
"$KONDENSE" plan --machine spark:8 --machine gb300 --json "$tmp/p.json" --html "$tmp/p.html" >"$tmp/p.txt"
head -24 "$tmp/p.txt" | grep -q "making it on all of these machines together" || fail "verdicts of two machines take more than a screen"
grep -q "fits as EXL3" "$tmp/p.txt" || fail "no verdict"
grep -q "8 &#\|8 ×" "$tmp/p.html" || fail "no heading"
python3 - "$tmp/p.json" <<'P' || fail "JSON"
import json, sys
p = json.load(open(sys.argv[1]))
assert [f["file_bytes"] for f in p["forms"][:2]] == [1560860324864, 821673926484], p["forms"]
assert len(p["machines"]) == 2 and p["machines"][0]["count"] == 8
for m in p["machines"]:
    assert len(m["chosen"]["speeds"]) == 4 and m["hours_on_one"]["low"]["total"] > 1
    for t in m["machine"]["tiers"]:
        assert t["gb_s"]["source"]
P
# Only JSON on standard output.
"$KONDENSE" plan -m pc --json - | python3 -c 'import json, sys; json.load(sys.stdin)' || fail "--json -"
# The same bytes as convert's own plan, for a shape of any size.
for bpw in 2.3 3; do
    want=$("$KONDENSE" convert "$data/k3-nano" "$tmp/x" --bpw $bpw --dry-run | sed -n 's/^ *weight files *\([0-9]*\) .*/\1/p')
    "$KONDENSE" plan "$data/k3-nano" -m pc --bpw $bpw --json - |
        python3 -c 'import json, sys; f = json.load(sys.stdin)["forms"]; print(f[1]["file_bytes"])' | grep -qx "$want" ||
        fail "k3-nano at $bpw: not the $want bytes of convert"
done
# A rate given twice is one form; the same model as folder and as GGUF; a page alone on standard output.
[ "$("$KONDENSE" plan -m spark:8 -b 2.3,2.3 --brief | grep -c "EXL3 2.3 bits is .* short.*EXL3 2.3 bits")" = 0 ] || fail "a rate twice"
"$KONDENSE" plan "$data/k3-nano" -m pc --brief | grep -q "fits as stored" || fail "k3-nano as stored"
"$KONDENSE" convert "$data/k3-nano" "$tmp/n.gguf" --to gguf -q >/dev/null
"$KONDENSE" plan "$tmp/n.gguf" -m pc >"$tmp/g.txt" || fail "a GGUF"
grep -q "fits as stored" "$tmp/g.txt" && grep -q "routed experts  *6.38" "$tmp/g.txt" || fail "a GGUF: $(head -20 "$tmp/g.txt")"
"$KONDENSE" plan -m pc --html - | tail -n 1 | grep -qx "</html>" || fail "--html -"
# A machine of one's own; --explain and --figures.
cat >"$tmp/box.json" <<'J'
{"format": 1, "name": "box", "title": "a box", "tiers": [
  {"kind": "ram", "gib": {"value": 1024, "source": "a bill"}, "gb_s": 400, "reserve_gib": 24}],
 "tflops": 4, "link_gb_s": 3, "collective_us": 60}
J
"$KONDENSE" plan -m "$tmp/box.json" -m "$tmp/box.json:2" --explain --figures --glossary >"$tmp/b.txt"
grep -q "a bill" "$tmp/b.txt" || fail "--explain does not name the source"
grep -q "2 x a box" "$tmp/b.txt" || fail "no count of a file"
grep -q "758 GiB" "$tmp/b.txt" || fail "--figures"
grep -q "hit rate  " "$tmp/b.txt" || fail "--glossary"
# More than one sequence, a dealt cache.
"$KONDENSE" plan -m spark:8 -s 4 --cut-cache --cache fp8 --context 131072 --brief | grep -q "4 sequences" || fail "use"
# The published format has every key that the reader knows.
echo '{"no": 1}' >"$tmp/k.json"
keys=$("$KONDENSE" plan -m "$tmp/k.json" 2>&1 | sed 's/.*known are: //; s/,//g') || true
for k in $keys kind gib gb_s reserve_gib; do
    grep -q "^|.*\`$k\`" "$KONDENSE_TEST_ROOT/docs/plan.md" || fail "docs/plan.md lacks $k"
done
echo "plan-k3: ok"
