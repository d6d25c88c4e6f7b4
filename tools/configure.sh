#!/bin/sh
# Configures a preset of CMakePresets.json under build/. A folder left by another compiler or another
# place of the source is configured anew; what CMake says is shown only when it fails.
set -eu
preset=$1
mkdir -p build
log=build/$preset.log
if command -v cmake >/dev/null; then
    cmake --preset "$preset" >"$log" 2>&1 && exit 0
    cmake --fresh --preset "$preset" >"$log" 2>&1 && exit 0
    cat "$log" >&2
else
    echo "cmake is not installed" >&2
fi
lists=build
case $preset in
asan | tsan | fuzz) lists="build ci" ;;
aarch64) lists="build arm" ;;
esac
if ! sh "$(dirname "$0")/packages.sh" --check $lists >&2; then
    echo "run 'make packages' (or 'make demo', which starts with it)" >&2
fi
exit 1
