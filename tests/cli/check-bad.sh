#!/usr/bin/env bash
# labels: fast
# kondense check refuses what it cannot compare, with a reason and the right exit code.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
text=$KONDENSE_TEST_DATA/text/eval.txt
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
# expect CODE TEXT arguments...
expect() {
    local code=$1 text=$2 rc=0
    shift 2
    "$KONDENSE" check "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ $rc = "$code" ] || fail "$*: exit $rc, not $code: $(cat "$tmp/err")"
    grep -q -- "$text" "$tmp/err" || fail "$*: '$(cat "$tmp/err")' does not say '$text'"
}
expect 2 'two models are needed' "$model"
expect 2 'cannot both go to' "$model" "$model" --text "$text" --json - --html -
expect 2 'text to check on' "$model" "$model"
expect 2 'cannot be required' "$model" "$model" --text "$text" --require speed=3
expect 2 'needs a bound' "$model" "$model" --text "$text" --require kld
expect 2 'profile' "$model" "$model" --text "$text" --profile k9
expect 1 'is not there' "$model" "$tmp/nothing" --text "$text"
expect 1 'No such file' "$model" "$model" --text "$tmp/nothing"
expect 1 'tokens' "$model" "$model" --text "$text" --rows 1000000
expect 1 'No such file' --ref "$tmp/nothing" "$model"
expect 2 'SRC is needed' --ref "$tmp/nothing" "$model" --battery "$tmp/nothing"
expect 2 'do not go together' --ref "$tmp/nothing" "$model" --save-ref "$tmp/ref"

# What a killed run left of it goes; what is another's stays.
touch "$tmp/ref.tmpAbC012" "$tmp/ref2.tmpAbC012" "$tmp/ref.tmp"
"$KONDENSE" check "$model" "$model" --text "$text" --rows 2 --cols 64 --save-ref "$tmp/ref" >/dev/null || fail "a reference"
[ ! -e "$tmp/ref.tmpAbC012" ] && [ -e "$tmp/ref2.tmpAbC012" ] && [ -e "$tmp/ref.tmp" ] || fail "left: $(ls "$tmp")"
expect 1 'rows of 64' --ref "$tmp/ref" "$model" --cols 65
expect 1 'rows of 64' --ref "$tmp/ref" "$model" --rows 3
expect 1 'other text' --ref "$tmp/ref" "$model" --text "$KONDENSE_TEST_DATA/text/calib.txt"
size=$(wc -c <"$tmp/ref")
head -c $((size - 1)) "$tmp/ref" >"$tmp/short"
expect 1 'cut short' --ref "$tmp/short" "$model"
head -c 3 "$tmp/ref" >"$tmp/tiny"
expect 1 'not a reference' --ref "$tmp/tiny" "$model"
cp "$tmp/ref" "$tmp/flipped"
printf 'x' | dd of="$tmp/flipped" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
expect 1 'do not match its digest' --ref "$tmp/flipped" "$model"

# Another source than the reference's, given or named by the receipt.
cp -r "$model" "$tmp/other"
chmod -R u+w "$tmp/other"
dd if=/dev/zero of="$tmp/other/model-00002-of-000002.safetensors" bs=65536 seek=60 count=1 conv=notrunc 2>/dev/null
expect 1 'another source' --ref "$tmp/ref" "$tmp/other" "$model"
printf '{"settings": {"source": {"config_sha256": "%064d", "shards": [{"sha256": "%064d"}]}}}\n' 1 2 >"$tmp/other/kondense.json"
expect 1 'was made of' --ref "$tmp/ref" "$tmp/other"
exit 0
