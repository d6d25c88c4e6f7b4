#!/bin/sh
# Compiles and links the CUDA part where nvcc is, and runs its tests: without a GPU they skip.
# KD_CUDA_ARCHS=90a compiles for those devices only; CI stops at their PTX (90a-virtual) and, with KD_CUDA_QUICK=ON,
# leaves out what makes it fast, to save time.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/cuda/bin
export PATH
if ! command -v nvcc >/dev/null; then
    echo "cuda: skipped, no nvcc here"
    exit 0
fi
sh tools/packages.sh build test cuda
sh tools/configure.sh cuda
[ -z "${KD_CUDA_ARCHS:-}" ] ||
    cmake -B build/cuda -DKD_CUDA_ARCHS="$KD_CUDA_ARCHS" -DKD_CUDA_QUICK="${KD_CUDA_QUICK:-OFF}" >/dev/null
cmake --build build/cuda --target kd_cuda_tests
ctest --test-dir build/cuda --output-on-failure --no-label-summary -L gpu
echo "cuda: compiled with $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p')"
