#!/usr/bin/env bash
# labels: fast
# kondense chat refuses what it cannot do, with a reason and the right exit code.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
# expect CODE TEXT command...
expect() {
    local code=$1 text=$2 rc=0
    shift 2
    "$@" </dev/null >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ $rc = "$code" ] || fail "$*: exit $rc, not $code: $(cat "$tmp/err")"
    grep -q -- "$text" "$tmp/err" || fail "$*: '$(cat "$tmp/err")' does not say '$text'"
}
expect 1 'No such file' "$KONDENSE" chat "$tmp/nowhere"
expect 2 'effort' "$KONDENSE" chat "$model" --effort huge
expect 2 'temp' "$KONDENSE" chat "$model" --temp -1
echo '{"a": 1}' >"$tmp/object.json"
echo '[1, 2' >"$tmp/broken.json"
echo '[1, 2]' >"$tmp/numbers.json"
expect 1 'not a JSON list' "$KONDENSE" chat "$model" --tools "$tmp/object.json"
expect 1 'not valid JSON' "$KONDENSE" chat "$model" --tools "$tmp/broken.json"
expect 1 'tool 1 has no name' "$KONDENSE" chat "$model" --tools "$tmp/numbers.json" -p Hi
named='{"type": "function", "function": {"name": "f"}}, {"name": "g"}'
for t in '{"type": "function", "function": {"parameters": {}}}' '{"function": {"name": ""}}' '{"function": {"name": 7}}' \
    '{"type": "function"}' '[]'; do
    echo "[$named, $t]" >"$tmp/nameless.json"
    expect 1 'tool 3 has no name' "$KONDENSE" chat "$model" --tools "$tmp/nameless.json" -p Hi
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "more than one line"
done
rc=0
echo '/tool 7' | "$KONDENSE" chat "$model" >"$tmp/out" 2>"$tmp/err" || rc=$?
[ $rc = 2 ] && grep -q 'no tool call waits' "$tmp/err" || fail "a result without a call: $rc $(cat "$tmp/err")"
mkdir "$tmp/model"
for f in "$model"/*; do ln -s "$f" "$tmp/model/"; done
rm "$tmp/model/tiktoken.model"
head -100 "$model/tiktoken.model" >"$tmp/model/tiktoken.model"
expect 1 '100 tokens, expected' "$KONDENSE" chat "$tmp/model"
