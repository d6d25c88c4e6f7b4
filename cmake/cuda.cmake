# The CUDA backend: kernels of src/gpu, linked into kd_gpu. Results are EXACT, so nvcc may not contract.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90-real 100-real 121-real)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(KD_CUDA_OPTIONS -std=c++17 --fmad=false -Werror=all-warnings
    -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off)
file(GLOB cuda CONFIGURE_DEPENDS src/gpu/*.cu)
add_library(kd_gpu_cuda STATIC ${cuda})
target_include_directories(kd_gpu_cuda PRIVATE src)
target_compile_definitions(kd_gpu_cuda PRIVATE _GNU_SOURCE KD_VERSION="${PROJECT_VERSION}")
target_compile_options(kd_gpu_cuda PRIVATE ${KD_CUDA_OPTIONS})
target_link_libraries(kd_gpu_cuda PUBLIC CUDA::cudart_static) # not kd_base, whose flags nvcc does not know
