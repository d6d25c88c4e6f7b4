#!/usr/bin/env bash
# The plan of K3 itself, from the released config and index alone: size, and memory for a small machine.
set -eu
release=${KONDENSE_SHARED:-$KONDENSE_TEST_ROOT/../shared}/release
test -e "$release/config.json" || exit 77
out=$("$KONDENSE" convert "$release" /nowhere/k3-2.3 --bpw 2.3 --dry-run)
echo "$out"
bytes=$(echo "$out" | sed -n 's/^ *weight files *\([0-9]*\) bytes.*/\1/p')
peak=$(echo "$out" | sed -n 's/^ *memory .*(\([0-9]*\) bytes).*/\1/p')
# About 765 GiB (exl3 Decision 1); one layer at a time in far less than 128 GB.
test "$bytes" -gt $((760 << 30)) && test "$bytes" -lt $((770 << 30))
test "$peak" -lt $((32 << 30))
test ! -e /nowhere
# 680 GiB of a GB300: the rate that just fits, never exceeded.
out=$("$KONDENSE" convert "$release" /nowhere/k3 --size 650G --dry-run)
bytes=$(echo "$out" | sed -n 's/^ *weight files *\([0-9]*\) bytes.*/\1/p')
test "$bytes" -le $((650 << 30)) && test "$bytes" -gt $(((650 << 30) - (1 << 20)))
