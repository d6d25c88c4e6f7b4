#!/bin/sh
# lint.sh BUILD [FILE...]: clang-tidy 19 over the C files (all of src and tests without names), warnings
# are errors. A file is skipped when it, the headers and the settings are as they were when it passed.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
tool=$(command -v clang-tidy-19) || { echo "lint: clang-tidy-19 is not installed (make packages)" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kondense-lint
mkdir -p "$cache"
base=$( (cat .clang-tidy && find src tests -name '*.h' -print0 | sort -z | xargs -0 cat) | sha256sum | cut -c1-64)
[ $# -gt 0 ] || set -- $(python3 -c '
import json, sys
print("\n".join(sorted({e["file"] for e in json.load(open(sys.argv[1] + "/compile_commands.json"))})))' "$build")
for f; do
    # Another machine's kernels are not in this build.
    grep -qF "/${f#/}\"" "$build/compile_commands.json" || continue
    case $f in */src/* | */tests/* | src/* | tests/*) ;; *) continue ;; esac
    key=$( (echo "$base"; cat "$f") | sha256sum | cut -c1-40)
    [ -e "$cache/$key" ] || printf '%s\0%s\0' "$f" "$cache/$key"
done | xargs -0 -r -n 2 -P "$(nproc)" sh -c '
    out=$("$0" -p "$1" --quiet --extra-arg=-Wno-unknown-warning-option \
        --extra-arg=-Wno-enum-float-conversion "$2" 2>&1) && touch "$3" && exit 0
    printf "%s\n" "$out" | grep -v "warnings generated\|Suppressed\|Use -header-filter"
    exit 1' "$tool" "$build"
