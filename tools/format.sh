#!/bin/sh
# Formats the C, C++ and CUDA files with clang-format 14 (other versions differ in details); --check only tells.
set -eu
cd "$(dirname "$0")/.."
tool=
for t in clang-format-14 clang-format; do
    if command -v $t >/dev/null && $t --version | grep -q 'version 14\.'; then
        tool=$t
        break
    fi
done
[ -n "$tool" ] || { echo "format: clang-format 14 is not installed (make packages)" >&2; exit 1; }
how=-i
[ "${1:-}" = --check ] && how='--dry-run -Werror --ferror-limit=3'
find src tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print0 | xargs -0 -r "$tool" $how --style=file
