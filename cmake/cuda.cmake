# The CUDA backend: kernels of src/gpu, linked into kd_gpu. Results are EXACT, so nvcc may not contract.
# KD_CUDA_ARCHS: 86 is Ampere's and, as its code runs there, Ada's RTX (89); 90a is Hopper, 100f Blackwell's data
# centre family (GB300, 103, too), 120f the other one (GB10, 121, and RTX); the letters let the search move
# registers between its warps.
set(KD_CUDA_ARCHS "86;90a;100f;120f" CACHE STRING "device architectures to compile for")
set(CMAKE_CUDA_ARCHITECTURES OFF)
option(KD_CUDA_QUICK "Leave out what makes device code fast: to see whether it compiles" OFF)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
foreach(arch ${KD_CUDA_ARCHS})
  if(arch MATCHES "^(.*)-virtual$") # PTX, which a driver translates: half the time to compile
    list(APPEND KD_CUDA_TARGETS -gencode=arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  else()
    list(APPEND KD_CUDA_TARGETS -gencode=arch=compute_${arch},code=sm_${arch})
  endif()
endforeach()
set(KD_CUDA_OPTIONS -std=c++17 --fmad=false -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off)
set(KD_CUDA_TEST_TARGETS ${KD_CUDA_TARGETS})
if(KD_CUDA_QUICK)
  list(APPEND KD_CUDA_OPTIONS -Ofc=max)
  list(GET KD_CUDA_TARGETS 0 KD_CUDA_TEST_TARGETS) # nothing runs: a test need compile for one device only
endif()
set(KD_CUDA_TEST_OPTIONS ${KD_CUDA_TEST_TARGETS} ${KD_CUDA_OPTIONS})
list(APPEND KD_CUDA_OPTIONS ${KD_CUDA_TARGETS})
file(GLOB cuda CONFIGURE_DEPENDS src/gpu/*.cu)
add_library(kd_gpu_cuda STATIC ${cuda})
target_include_directories(kd_gpu_cuda PRIVATE src)
target_compile_definitions(kd_gpu_cuda PRIVATE _GNU_SOURCE KD_VERSION="${PROJECT_VERSION}")
target_compile_options(kd_gpu_cuda PRIVATE ${KD_CUDA_OPTIONS})
# Not kd_base, whose flags nvcc does not know. Private: C files are compiled as without CUDA, so that a
# compiler's cache serves both builds.
target_link_libraries(kd_gpu_cuda PRIVATE CUDA::cudart_static)
