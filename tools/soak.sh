#!/bin/sh
# soak.sh BUILD CLIENTS: tests/serve/test_soak.py with this build for KONDENSE_SOAK seconds.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
export KONDENSE="$1/kondense" KONDENSE_FAKE="$1/kondense_fake" KONDENSE_TEST_ROOT="$root"
export KONDENSE_TEST_DATA="$root/tests/data" PYTHONDONTWRITEBYTECODE=1 KONDENSE_SOAK_CLIENTS="$2"
export ASAN_OPTIONS=detect_leaks=1:exitcode=99 TSAN_OPTIONS=exitcode=99
exec python3 "$root/tests/serve/test_soak.py"
