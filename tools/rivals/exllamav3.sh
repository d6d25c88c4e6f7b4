#!/bin/sh
# Builds the part of a checkout of exllamav3 that exllamav3.py measures, where building all of it is
# too long: products and experts of the codebook mul1 at a few rates, the encoder at 1 to 8 bits. What
# is left out links as "not there". The result is OUT/exllamav3_ext.so for PYTHONPATH.
#
#   tools/rivals/exllamav3.sh CHECKOUT OUT [RATE...]        rates 2 and 3 unless given
#
# PYTHON (python3) has torch, or TORCH is the folder of an unpacked torch wheel (torch/include and
# torch/lib in it) that fits PYTHON; NVCC and CUDA (/usr/local/cuda) as usual; ARCH the device, 90
# unless given; JOBS as for make.
set -eu
[ $# -ge 2 ] || {
    echo "usage: exllamav3.sh CHECKOUT OUT [RATE...]" >&2
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
ext=$(cd "$1/exllamav3/exllamav3_ext" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
rates=${*:-2 3}
python=${PYTHON:-python3}
cuda=${CUDA:-/usr/local/cuda}
arch=${ARCH:-90}
torch=${TORCH:-$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')}
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
work=$out/obj
mkdir -p "$work"

# What is not compiled but named by exllamav3's tables.
has() {
    case " $rates " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}
units=$ext/quant/comp_units
{
    echo '#include <cuda_fp16.h>'
    echo "#include \"$units/exl3_moe_instances.cuh\""
    echo "#include \"$units/quantize_tiles_instances.cuh\""
    echo "#include \"$ext/quant/exl3_kernel_map.cuh\""
    for k in 1 2 3 4 5 6 7 8; do
        for cb in 0 1 2; do
            [ $cb = 2 ] && has $k && continue
            for c in fp32 fp16; do
                echo "fp_exl3_gemm_kernel tfp_exl3_gemm_kernel_${c}_b${k}_cb${cb}[5] = {};"
                echo "fp_exl3_mgemm_kernel tfp_exl3_mgemm_kernel_${c}_b${k}_cb${cb}[5] = {};"
            done
        done
        for cb in 0 1; do
            echo "fp_quantize_tiles_kernel quantize_tiles_kernel_k${k}_cb$cb() { return nullptr; }"
        done
        has $k || echo "void *exl3_gemv_int8_coop_sel_k$k(bool, bool) { return nullptr; }"
        [ $k -gt 6 ] || has $k ||
            echo "void *exl3_gemv_int8_sq_sel_k$k(int, bool, bool) { return nullptr; }"
    done
    for k in 0 1 2 3 4 5 6 7 8; do
        for n in 128 256; do
            echo "fp_exl3_moe_kernel exl3_moe_kernel_k${k}_n${n}_cb1() { return nullptr; }"
            has $k ||
                echo "fp_exl3_moe_kernel exl3_moe_kernel_k${k}_n${n}_cb2() { return nullptr; }"
        done
    done
} >"$work/absent.cu"
for k in 1 2 3 4 5 6 7 8; do
    {
        echo "#include \"$units/quantize_tiles_instances.cuh\""
        echo "#include \"$ext/quant/quantize_tiles_kernel.cuh\""
        echo "fp_quantize_tiles_kernel quantize_tiles_kernel_k${k}_cb2()"
        echo "{"
        echo "    return quantize_tiles_kernel<$k, 2>;"
        echo "}"
    } >"$work/encode_$k.cu"
done

sources="$ext/quant/exl3_gemv.cu"
for k in $rates; do
    sources="$sources $units/exl3_comp_unit_${k}_cb2.cu $units/exl3_gemv_int8_inst_coop_k$k.cu"
    [ "$k" -gt 6 ] || sources="$sources $units/exl3_gemv_int8_inst_sq_k$k.cu"
    sources="$sources $units/exl3_moe_inst_k${k}_cb2.cu"
done
for f in exl3_gemm exl3_gemv_int8 exl3_kernel_map exl3_moe exl3_devctx coop_autotune quantize; do
    sources="$sources $ext/quant/$f.cu"
done
for f in activation.cu add.cu hgemm.cu graph.cu cuda_drv.cpp libtorch/linear.cpp; do
    sources="$sources $ext/$f"
done
for k in 1 2 3 4 5 6 7 8; do
    sources="$sources $work/encode_$k.cu"
done

# The flags are exllamav3's own and torch's for extensions.
common="-O3 -fPIC -std=c++17 -I$ext -isystem $torch/torch/include"
common="$common -isystem $torch/torch/include/torch/csrc/api/include -isystem $include"
common="$common -isystem $cuda/include -DTORCH_API_INCLUDE_EXTENSION_H"
common="$common -DTORCH_EXTENSION_NAME=exllamav3_ext"
device="-gencode arch=compute_$arch,code=sm_$arch --use_fast_math --expt-relaxed-constexpr"
device="$device -Xcudafe --diag_suppress=177 -Xcudafe --diag_suppress=20012"
for name in HALF_OPERATORS HALF_CONVERSIONS BFLOAT16_CONVERSIONS HALF2_OPERATORS; do
    device="$device -D__CUDA_NO_${name}__"
done
{
    printf 'all: %s/exllamav3_ext.so\n' "$out"
    objects=
    for f in $sources "$work/absent.cu" "$here/exllamav3.cpp"; do
        o=$work/$(basename "$f").o
        objects="$objects $o"
        case $f in
        *.cu) rule="${NVCC:-nvcc} $device $(echo "$common" | sed 's/-fPIC/-Xcompiler -fPIC/')" ;;
        *) rule="${CXX:-c++} $common -w" ;;
        esac
        printf '%s: %s\n\t%s -c %s -o $@\n' "$o" "$f" "$rule" "$f"
    done
    printf '%s/exllamav3_ext.so:%s\n' "$out" "$objects"
    printf '\t%s -shared -o $@ $^ -L%s/torch/lib -L%s/lib64' "${CXX:-c++}" "$torch" "$cuda"
    printf ' -ltorch_python -ltorch -ltorch_cuda -ltorch_cpu -lc10_cuda -lc10 -lcublas -lcudart\n'
} >"$work/Makefile"
make -r -f "$work/Makefile" -j "${JOBS:-$(nproc)}"
