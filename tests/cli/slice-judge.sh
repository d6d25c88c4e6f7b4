#!/usr/bin/env bash
# llama.cpp loads and runs slices of the GGUF of k3-nano, copied and converted. Without it (tools/judges.sh) the test
# skips.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
judges=${KONDENSE_JUDGES:-${XDG_CACHE_HOME:-$HOME/.cache}/kondense-judges}
python=$judges/bin/python
[ -x "$python" ] || { echo "skipped: no judges in $judges (tools/judges.sh makes them)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$KONDENSE" convert "$nano" "$tmp/k3.gguf" --to gguf -q >/dev/null
n=0
for args in '--layers 4 --experts 4' '--layers 0-3,8 --experts 1,3,30,31' '--layers 8 --experts 16 --experts-used 2' \
    '--layers 4 --experts 8 --requant Q1_0' '--layers 4 --experts 8 --requant Q8_0'; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    "$KONDENSE" slice "$tmp/k3.gguf" "$tmp/$n.gguf" $args -q >/dev/null
    rc=0
    timeout 300 "$python" "$KONDENSE_TEST_ROOT/tests/judge/llama.py" --loads "$tmp/$n.gguf" || rc=$?
    [ $rc != 77 ] || exit 77
    [ $rc = 0 ] || { echo "slice-judge: $args: llama.cpp does not run it" >&2; exit 1; }
done
echo "slice-judge: $n slices ran"
