/* A small exllamav3_ext: the entry points that tools/rivals/exllamav3.py calls, under the names
 * that exllamav3 itself gives them, so that the script cannot tell it from a whole one. Compiled by
 * exllamav3.sh with a checkout's folder exllamav3/exllamav3_ext as the include path. */
#include <cuda_fp16.h>

#include <torch/extension.h>

#include "activation.cuh"
#include "libtorch/linear.h"
#include "quant/exl3_devctx.cuh"
#include "quant/exl3_gemm.cuh"
#include "quant/exl3_gemv.cuh"
#include "quant/exl3_gemv_int8.cuh"
#include "quant/exl3_moe.cuh"
#include "quant/quantize.cuh"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("quantize_tiles", &quantize_tiles);
    m.def("exl3_gemm", &exl3_gemm);
    m.def("exl3_gemv", &exl3_gemv);
    m.def("exl3_mgemm", &exl3_mgemm);
    m.def("exl3_moe", &exl3_moe);
    m.def("exl3_moe_max_concurrency", &exl3_moe_max_concurrency);
    m.def("exl3_gemv_int8_max_k", &exl3_gemv_int8_max_k);
    m.def("silu_mul", &silu_mul);
    py::class_<BC_LinearEXL3, std::shared_ptr<BC_LinearEXL3>>(m, "BC_LinearEXL3")
        .def(py::init<at::Tensor, at::Tensor, at::Tensor, int, c10::optional<at::Tensor>, bool,
                      bool, at::Tensor>())
        .def("run", &BC_LinearEXL3::run)
        .def("run_alloc", &BC_LinearEXL3::run_alloc);
}
