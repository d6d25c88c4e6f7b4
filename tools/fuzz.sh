#!/bin/sh
# fuzz.sh BUILD SECONDS: each libFuzzer target for so long, starting from its corpus. New inputs stay
# under BUILD; one that crashes is printed with its path, to be added to tests/fuzz/corpus/<target>.
set -eu
build=$1
seconds=$2
bad=0
found=0
for t in "$build"/fuzz_*; do
    [ -x "$t" ] && [ -f "$t" ] || continue
    found=1
    name=${t##*/fuzz_}
    mkdir -p "$build/corpus/$name" "$build/crash/$name"
    seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    echo "fuzz $name: $seconds s"
    if ! "$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/crash/$name/" "$build/corpus/$name" $seeds \
        >"$build/$name.log" 2>&1; then
        tail -n 40 "$build/$name.log"
        echo "fuzz $name: FAILED, input under $build/crash/$name"
        bad=1
    else
        sed -n 's/^stat::number_of_executed_units: */  inputs run: /p' "$build/$name.log"
    fi
done
[ "$found" = 1 ] || { echo "fuzz: no targets in $build" >&2; exit 1; }
exit $bad
