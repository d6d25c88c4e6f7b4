# Flags for every C file (docs/numerics.md says why -ffp-contract=off) and those of one instruction set.
add_library(kd_flags INTERFACE)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O3 -g1")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -DKD_DEBUG")
if(KD_SAN)
  set(CMAKE_C_FLAGS_DEBUG "-O2 -gline-tables-only -DKD_DEBUG") # instrumented code is slow enough
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(kd_flags INTERFACE _GNU_SOURCE KD_VERSION="${PROJECT_VERSION}")
target_compile_options(kd_flags INTERFACE
  "SHELL:-include ${CMAKE_SOURCE_DIR}/src/base/banned.h"
  -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-common -fno-strict-aliasing -fvisibility=hidden
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wstrict-prototypes
  -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef -Wpointer-arith -Wcast-qual -Wwrite-strings
  -Wformat=2 -Wno-format-nonliteral -Wno-missing-field-initializers -Wswitch-enum -Wimplicit-fallthrough)
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
  target_compile_options(kd_flags INTERFACE -Wlogical-op -Wduplicated-cond -Wduplicated-branches -Wno-psabi)
endif()
if(CMAKE_C_COMPILER_ID STREQUAL Clang)
  # Named integers (enum { ROWS = 8 }) meet doubles on purpose; gcc's -Wdouble-promotion is the one that
  # knows that INFINITY has no precision to lose.
  target_compile_options(kd_flags INTERFACE -Wno-enum-float-conversion -Wno-double-promotion)
endif()
if(KD_WERROR)
  target_compile_options(kd_flags INTERFACE -Werror)
endif()
if(KD_SAN)
  target_compile_options(kd_flags INTERFACE -fsanitize=${KD_SAN} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(kd_flags INTERFACE -fsanitize=${KD_SAN})
else()
  target_compile_options(kd_flags INTERFACE $<$<CONFIG:RelWithDebInfo>:-D_FORTIFY_SOURCE=2 -fstack-protector-strong>)
  target_link_options(kd_flags INTERFACE -Wl,-z,relro,-z,now)
endif()
if(KD_FUZZ)
  target_compile_options(kd_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
set(KD_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(KD_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mfma -mf16c -mprefer-vector-width=512)
set(KD_FLAGS_avx512fp16 ${KD_FLAGS_avx512} -mavx512fp16)
set(KD_FLAGS_neon -march=armv8.2-a+dotprod+fp16)
if(KD_SAN MATCHES undefined)
  # Searches unrolled for every rate take clang minutes with every check; those of memory take seconds, and
  # the reference, which has the same arithmetic, keeps them all.
  foreach(isa avx2 avx512 avx512fp16 neon)
    list(APPEND KD_FLAGS_${isa} -fno-sanitize=undefined -fsanitize=bounds,alignment)
  endforeach()
endif()
