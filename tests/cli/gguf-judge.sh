#!/usr/bin/env bash
# Others read what `convert --to gguf` writes: the Python package gguf and llama.cpp. Where they are not
# (tools/judges.sh makes them, in KONDENSE_JUDGES), the test says which one and skips.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
judges=${KONDENSE_JUDGES:-${XDG_CACHE_HOME:-$HOME/.cache}/kondense-judges}
python=$judges/bin/python
[ -x "$python" ] || { echo "skipped: no judges in $judges (tools/judges.sh makes them)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
skipped=0
ask() { # JUDGE ARGS...
    local rc=0
    timeout 300 "$python" "$KONDENSE_TEST_ROOT/tests/judge/$1.py" "${@:2}" || rc=$?
    [ $rc = 0 ] || [ $rc = 77 ] || { echo "gguf-judge: $* failed" >&2; exit 1; }
    [ $rc = 0 ] || skipped=77
}
"$KONDENSE" convert "$nano" "$tmp/bf16.gguf" --to gguf -q >/dev/null
"$KONDENSE" convert "$nano" "$tmp/q8.gguf" --to gguf --trunk-type q8_0 -q >/dev/null
"$KONDENSE" convert "$nano" "$tmp/set" --to gguf --split-size 4M -q >/dev/null
ask reader "$nano" "$tmp/bf16.gguf"
ask reader "$nano" "$tmp/q8.gguf"
ask llama "$nano" "$tmp/bf16.gguf"
ask llama --loads "$tmp/q8.gguf"
ask llama --loads "$(ls "$tmp"/set/*-00001-of-*.gguf)"
exit $skipped
