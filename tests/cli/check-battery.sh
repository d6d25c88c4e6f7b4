#!/usr/bin/env bash
# The agent battery: a model against itself flips nothing and meets about what it was trained to; two
# runs agree; a damaged copy loses turns.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
battery=$KONDENSE_TEST_DATA/agent-battery.json
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
field() { sed -n "s/.*\"$1\": \([^,]*\),*$/\1/p" "$2"; }

"$KONDENSE" check "$model" "$model" --battery "$battery" --battery-rows 12 --json "$tmp/a" --html "$tmp/page" --require battery.exact=0.3,battery.calls=0.3 >"$tmp/out" || fail "a model against itself"
[ "$(field requests "$tmp/a")" = 12 ] || fail "requests"
[ "$(field right_to_wrong "$tmp/a" | sort -u)" = 0 ] || fail "flips in a model against itself"
[ "$(field kld "$tmp/a" | head -1)" = 0.0 ] || fail "KLD of a model against itself"
grep -q 'valid tool calls' "$tmp/page" || fail "no battery on the page"
"$KONDENSE" check "$model" "$model" --battery "$battery" --battery-rows 12 --json "$tmp/b" --require battery.exact=0.3,battery.calls=0.3 --threads 1 >/dev/null || fail "one thread"
cmp "$tmp/a" "$tmp/b" || fail "two runs differ"

cp -r "$model" "$tmp/dst"
chmod -R u+w "$tmp/dst"
dd if=/dev/zero of="$tmp/dst/model-00002-of-000002.safetensors" bs=65536 seek=20 count=120 conv=notrunc 2>/dev/null
rc=0
"$KONDENSE" check "$model" "$tmp/dst" --battery "$battery" --battery-rows 12 --json "$tmp/c" --require battery.exact=1 >"$tmp/out" 2>"$tmp/err" || rc=$?
[ $rc = 3 ] || fail "a broken model passes: $rc $(cat "$tmp/err")"
[ "$(field right_to_wrong "$tmp/c" | head -1)" -gt 0 ] || fail "a broken model loses no turn"
exit 0
