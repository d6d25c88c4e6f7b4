#!/usr/bin/env bash
# kondense check: a model against itself has no error; a damaged copy has some; the same figures for any
# number of threads, rows a call, instruction set, work files, and from a saved reference.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
text=$KONDENSE_TEST_DATA/text/eval.txt
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
check() { "$KONDENSE" check "$@" --rows 3 --cols 80; }
has() { grep -q "$2" "$1" || fail "$1 lacks $2: $(head -c 1500 "$1")"; }

check "$model" "$model" --text "$text" --json "$tmp/same" --require kld=0,top1=1,router.min=1 >"$tmp/out" || fail "a model against itself"
has "$tmp/same" '"mean": 0.0,'
has "$tmp/same" '"top1": 1.0'
has "$tmp/same" '"min": 1.0'
has "$tmp/same" '"tokens": 240'
has "$tmp/out" 'PASS 3 of 3'
[ -e "$model/kondense.json" ] && fail "a receipt beside the source"

# A copy with 64 kB of its second shard's experts flipped to zero.
cp -r "$model" "$tmp/dst"
chmod -R u+w "$tmp/dst"
dd if=/dev/zero of="$tmp/dst/model-00002-of-000002.safetensors" bs=65536 seek=60 count=20 conv=notrunc 2>/dev/null
check "$model" "$tmp/dst" --text "$text" --json "$tmp/a" --html "$tmp/page" --save-ref "$tmp/ref" >"$tmp/out" || fail "a damaged copy"
has "$tmp/a" '"pass": null'
grep -A1 '"kld": {' "$tmp/a" | head -2 | grep -q '"mean": 0.0,' && fail "no KLD in a damaged copy"
has "$tmp/page" '</html>'
[ "$(wc -l <"$tmp/out")" -le 24 ] || fail "more than a screen"
has "$tmp/dst/kondense.json" '"verdict"'

check "$model" "$tmp/dst" --text "$text" --json - --threads 1 >"$tmp/b" || fail "one thread"
cmp "$tmp/a" "$tmp/b" || fail "one thread gives other figures"
check "$model" "$tmp/dst" --text "$text" --json "$tmp/b" --work "$tmp/work" >"$tmp/out" || fail "work files"
cmp "$tmp/a" "$tmp/b" || fail "work files give other figures"
[ -z "$(ls "$tmp/work")" ] || fail "work files are left"
few() { "$KONDENSE" check "$model" "$tmp/dst" --text "$text" --rows 2 --cols 24 --no-verdict --json "$1" >"$tmp/out"; }
few "$tmp/c" && KONDENSE_ISA=ref few "$tmp/b" || fail "a few tokens"
cmp "$tmp/c" "$tmp/b" || fail "the reference kernels give other figures"
"$KONDENSE" check --ref "$tmp/ref" "$tmp/dst" --json "$tmp/b" >"$tmp/out" || fail "from a reference"
cmp "$tmp/a" "$tmp/b" || fail "the reference gives other figures"
check --ref "$tmp/ref" "$model" "$tmp/dst" --text "$text" --json "$tmp/b" >"$tmp/out" || fail "a reference beside its source"
cmp "$tmp/a" "$tmp/b" || fail "a reference beside its source gives other figures"

# Requirements: every figure is still printed, exit code 3, the verdict in the receipt.
rc=0
check "$model" "$tmp/dst" --text "$text" --require kld=0.000001,top1=0.1 --json "$tmp/b" >"$tmp/out" 2>"$tmp/err" || rc=$?
[ $rc = 3 ] || fail "a failed requirement ends with $rc"
has "$tmp/out" 'FAIL kld'
has "$tmp/out" 'router  '
has "$tmp/err" 'kld 0.* is over 1e-06'
has "$tmp/b" '"pass": false'
has "$tmp/dst/kondense.json" '"pass": false'
cp "$tmp/dst/kondense.json" "$tmp/before"
check "$model" "$tmp/dst" --text "$text" --no-verdict >"$tmp/out" || fail "without a verdict"
cmp "$tmp/before" "$tmp/dst/kondense.json" || fail "--no-verdict wrote one"
check "$model" "$tmp/dst" --text "$text" --profile k3 >"$tmp/out" 2>"$tmp/err" || [ $? = 3 ] || fail "a profile"
has "$tmp/dst/kondense.json" '"figure": "router.min"'
exit 0
