# Unit tests: tests/unit/<folder>_<file>.c links kd_<folder> and what that folder may use, no more.
# Tests of kernels run once for each instruction set; one that cannot run here skips (77).
#
# A test file may carry a line "labels: ..." in a comment (C) or after # (shell):
#   long    only in `make full`      fast    a command-line test that is also run with the sanitizers
#   figures what a search or a measurement finds, not how it gets there: not run with the sanitizers
#   gpu     one that wants a device, too: `make cuda`
# and "timeout: SECONDS" where the default does not fit.
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
set(KD_TEST_ENV "KONDENSE_TEST_DATA=${CMAKE_SOURCE_DIR}/tests/data;KONDENSE_GOLDEN=${CMAKE_SOURCE_DIR}/tests/golden")
list(APPEND KD_TEST_ENV "KONDENSE_TEST_ROOT=${CMAKE_SOURCE_DIR}")
set(KD_SLOW 1) # how much slower than a release build of this machine's own code
if(CMAKE_CROSSCOMPILING OR KD_SAN)
  set(KD_SLOW 4)
endif()

# kd_test(NAME FILE LABEL TIMEOUT ENV): properties common to all, and those the file asks for.
function(kd_test name file label timeout env)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} marks REGEX "^(/\\*|#|//| \\*) *(labels|timeout): " LIMIT_COUNT 2)
  set(labels ${label})
  foreach(m ${marks})
    if(m MATCHES "labels: *([a-z ]+)")
      string(STRIP "${CMAKE_MATCH_1}" more)
      string(REPLACE " " ";" more "${more}")
      list(APPEND labels ${more})
    elseif(m MATCHES "timeout: *([0-9]+)")
      set(timeout ${CMAKE_MATCH_1})
    endif()
  endforeach()
  # A minute of this machine's own code is a quarter of an hour under emulation; the kernels, which are
  # what differs there, are tested on their own.
  if(name MATCHES "^unit/(codec_(expert|quant)|convert_(gguf|rates)|gate_stream|kern_trellis_(fp16|quality)/.*)$" OR
     name MATCHES "^unit/(model_(cut|golden|ranks|seq)|serve_.*|text_tok)$")
    list(APPEND labels heavy)
  endif()
  # What takes longest begins first, or it would be alone at the end.
  if(name MATCHES "^(cli/(convert-.*|pilot-layer)|farm/fast|gpu/emulated_.*|net/discard|unit/serve_(engine|limits))$")
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
  math(EXPR timeout "${timeout} * ${KD_SLOW}")
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
                       ENVIRONMENT "${KD_TEST_ENV};${env}")
endfunction()

# Tests hold floats against doubles, take fixtures in the order of their initialisers, and mix signs in
# assertions, whose casts clang sees and gcc does not.
add_library(kd_test_flags INTERFACE)
target_compile_options(kd_test_flags INTERFACE -Wno-double-promotion
                       "$<$<C_COMPILER_ID:Clang>:-Wno-unsequenced;-Wno-sign-conversion>")
# Where it is 1, tests of many like cases take a part of them.
target_compile_definitions(kd_test_flags INTERFACE KD_TEST_SLOW=$<NOT:$<EQUAL:${KD_SLOW},1>>)

add_custom_target(unit_tests) # all of them
if(CMOCKA_FOUND)
  file(GLOB unit CONFIGURE_DEPENDS tests/unit/*.c)
  foreach(f ${unit})
    get_filename_component(name ${f} NAME_WE)
    string(REGEX REPLACE "_.*" "" folder ${name})
    add_executable(test_${name} ${f})
    add_dependencies(unit_tests test_${name})
    target_include_directories(test_${name} PRIVATE tests)
    target_link_libraries(test_${name} PRIVATE kd_${folder} PkgConfig::CMOCKA kd_test_flags)
    if(folder STREQUAL kern)
      set(isas ref avx2 avx512 neon)
      if(name MATCHES "trellis|exl3") # what it has of its own
        list(APPEND isas avx512fp16)
      endif()
      foreach(isa ${isas})
        add_test(NAME unit/${name}/${isa} COMMAND test_${name})
        kd_test(unit/${name}/${isa} ${f} unit 300 "KONDENSE_ISA=${isa}")
      endforeach()
    else()
      add_test(NAME unit/${name} COMMAND test_${name})
      kd_test(unit/${name} ${f} unit 300 "")
    endif()
  endforeach()
endif()

# Command-line tests: tests/cli/*.sh, with the binary's path in KONDENSE.
file(GLOB cli CONFIGURE_DEPENDS tests/cli/*.sh)
foreach(f ${cli})
  get_filename_component(name ${f} NAME_WE)
  add_test(NAME cli/${name} COMMAND bash ${f})
  kd_test(cli/${name} ${f} cli 600 "KONDENSE=$<TARGET_FILE:kondense>")
endforeach()

# The server: tests/serve/*.py over HTTP. kondense_fake is the program with an engine that plays what a
# test tells it, so that these are tests of the API alone; those of engine_*.py use the real one.
add_executable(kondense_fake src/main.c tests/serve/fake_engine.c)
target_link_libraries(kondense_fake PRIVATE kd_cmd kd_test_flags)
find_program(KD_PYTHON python3)
if(KD_PYTHON)
  file(GLOB serve CONFIGURE_DEPENDS tests/serve/test_*.py)
  foreach(f ${serve})
    get_filename_component(name ${f} NAME_WE)
    string(REGEX REPLACE "^test_" "" name ${name})
    add_test(NAME serve/${name} COMMAND ${KD_PYTHON} ${f})
    kd_test(serve/${name} ${f} serve 300
            "KONDENSE=$<TARGET_FILE:kondense>;KONDENSE_FAKE=$<TARGET_FILE:kondense_fake>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()

  # Remote files: tests/net/test_*.py against tests/net/range_server.py, which misbehaves to order.
  file(GLOB net CONFIGURE_DEPENDS tests/net/test_*.py)
  foreach(f ${net})
    get_filename_component(name ${f} NAME_WE)
    string(REGEX REPLACE "^test_" "" name ${name})
    add_test(NAME net/${name} COMMAND ${KD_PYTHON} ${f})
    kd_test(net/${name} ${f} net 300 "KONDENSE=$<TARGET_FILE:kondense>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()

# The farm: tests/farm/test_*.py with real processes on loopback. kondense_faulty is the program with a
# worker that is broken on demand.
add_executable(kondense_faulty src/main.c tests/farm/faulty_encode.c)
target_link_libraries(kondense_faulty PRIVATE kd_cmd kd_test_flags)
if(KD_PYTHON)
  file(GLOB farm CONFIGURE_DEPENDS tests/farm/test_*.py)
  foreach(f ${farm})
    get_filename_component(name ${f} NAME_WE)
    string(REGEX REPLACE "^test_" "" name ${name})
    add_test(NAME farm/${name} COMMAND ${KD_PYTHON} ${f})
    kd_test(farm/${name} ${f} farm 300
            "KONDENSE=$<TARGET_FILE:kondense>;KONDENSE_FAULTY=$<TARGET_FILE:kondense_faulty>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()

# Fuzz targets: tests/fuzz/<folder>_<parser>.c define LLVMFuzzerTestOneInput. With KD_FUZZ they are
# libFuzzer programs; otherwise replay.c runs the corpus and the regressions through them.
file(GLOB fuzz CONFIGURE_DEPENDS tests/fuzz/*.c)
list(FILTER fuzz EXCLUDE REGEX "replay\\.c$")
if(NOT KD_FUZZ)
  add_library(fuzz_replay OBJECT tests/fuzz/replay.c)
  target_include_directories(fuzz_replay PRIVATE tests)
  target_link_libraries(fuzz_replay PRIVATE kd_base)
endif()
foreach(f ${fuzz})
  get_filename_component(name ${f} NAME_WE)
  string(REGEX REPLACE "_.*" "" folder ${name})
  if(KD_FUZZ)
    add_executable(fuzz_${name} ${f})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(fuzz_${name} ${f} $<TARGET_OBJECTS:fuzz_replay>)
    add_test(NAME fuzz/${name} COMMAND fuzz_${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
    kd_test(fuzz/${name} ${f} fuzz 120 "")
  endif()
  target_include_directories(fuzz_${name} PRIVATE tests)
  target_link_libraries(fuzz_${name} PRIVATE kd_${folder})
endforeach()

# Tests that need a device (tests/gpu/*.cu, and those of tests/cli that are marked so): compiled and linked
# wherever nvcc is, skipped (77) without a GPU.
if(KD_CUDA)
  add_custom_target(kd_cuda_tests DEPENDS kondense)
  file(GLOB gpu CONFIGURE_DEPENDS tests/gpu/*.cu)
  foreach(f ${gpu})
    get_filename_component(name ${f} NAME_WE)
    add_executable(gpu_${name} EXCLUDE_FROM_ALL ${f})
    target_include_directories(gpu_${name} PRIVATE src tests)
    target_compile_definitions(gpu_${name} PRIVATE _GNU_SOURCE)
    target_compile_options(gpu_${name} PRIVATE ${KD_CUDA_TEST_OPTIONS})
    target_link_libraries(gpu_${name} PRIVATE $<TARGET_FILE:kd_codec> $<TARGET_FILE:kd_la> $<TARGET_FILE:kd_fmt> $<TARGET_FILE:kd_kern>
                          $<TARGET_FILE:kd_gpu_cuda> $<TARGET_FILE:kd_base> CUDA::cudart_static PkgConfig::POPT
                          PkgConfig::JANSSON PkgConfig::CRYPTO Threads::Threads m)
    add_dependencies(gpu_${name} kd_codec kd_la kd_fmt kd_gpu_cuda kd_kern kd_base)
    add_dependencies(kd_cuda_tests gpu_${name})
    add_test(NAME gpu/${name} COMMAND gpu_${name})
    kd_test(gpu/${name} ${f} gpu 300 "")
  endforeach()
  # What encode_account.h measures passes through it.
  file(READ tests/gpu/encode_account.h calls)
  string(REGEX MATCHALL "X\\([a-z]+, \\(" calls "${calls}")
  foreach(call ${calls})
    string(REGEX REPLACE "X\\(([a-z]+),.*" "LINKER:--wrap=kd_gpu_tensor_\\1" call "${call}")
    target_link_options(gpu_encode_device PRIVATE ${call})
  endforeach()
  # A driver that is too old, wherever there is one that is not.
  add_library(kd_old_driver MODULE EXCLUDE_FROM_ALL tests/gpu/old_driver.c)
  set_target_properties(kd_old_driver PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/old_driver)
  add_dependencies(kd_cuda_tests kd_old_driver)
  add_test(NAME gpu/old_driver COMMAND bash ${CMAKE_SOURCE_DIR}/tests/gpu/old_driver.sh)
  kd_test(gpu/old_driver tests/gpu/old_driver.sh gpu 60
          "KONDENSE=$<TARGET_FILE:kondense>;KONDENSE_DRIVER=${CMAKE_BINARY_DIR}/old_driver")
  # A whole model against the CPU and its goldens; the server's engine over it.
  foreach(name model serve)
    add_executable(gpu_${name}_device EXCLUDE_FROM_ALL tests/gpu/${name}_device.c)
    target_include_directories(gpu_${name}_device PRIVATE tests)
    target_link_libraries(gpu_${name}_device PRIVATE kd_${name} kd_test_flags)
    add_dependencies(kd_cuda_tests gpu_${name}_device)
    add_test(NAME gpu/${name}_device COMMAND gpu_${name}_device)
    kd_test(gpu/${name}_device tests/gpu/${name}_device.c gpu 300 "")
  endforeach()
endif()

# Kernels without a device: their logic on the CPU (tests/gpu/emulate.h), where clang is, whose C++ knows
# half floats.
find_program(KD_CLANGXX clang++-19)
if(KD_CLANGXX AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT KD_SAN AND NOT KD_FUZZ)
  add_custom_target(gpu_emulated ALL)
  # What kern/ and codec/ call where a test brings no calibration of its own.
  add_library(kd_gpu_none STATIC EXCLUDE_FROM_ALL src/gpu/calib_none.c)
  target_link_libraries(kd_gpu_none PUBLIC kd_base)
  file(GLOB emulated CONFIGURE_DEPENDS tests/gpu/emulated_*.cpp)
  foreach(f ${emulated})
    get_filename_component(name ${f} NAME_WE)
    set(program ${CMAKE_BINARY_DIR}/gpu_${name})
    set(level 2)
    if(name MATCHES "_(encode|experts|gemm|product)$")
      set(level 0) # many kernels that run a moment each: optimizing them takes five times their tests' time
    endif()
    add_custom_command(OUTPUT ${program}.o
                       COMMAND ${KD_CLANGXX} -std=c++17 -O${level} -march=x86-64-v3 -ffp-contract=off -Wall -Wextra -Werror
                               -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tests
                               -I${CMAKE_SOURCE_DIR}/tests/gpu/fake -MD -MF ${program}.d -c ${f}
                               -o ${program}.o
                       DEPENDS ${f} DEPFILE ${program}.d VERBATIM)
    add_custom_command(OUTPUT ${program}
                       COMMAND ${KD_CLANGXX} ${program}.o $<TARGET_FILE:kd_codec> $<TARGET_FILE:kd_la> $<TARGET_FILE:kd_fmt>
                               $<TARGET_FILE:kd_kern> $<TARGET_FILE:kd_gpu_none> $<TARGET_FILE:kd_base> -ljansson -lpopt -lcrypto -lpthread -lm
                               -o ${program}
                       DEPENDS ${program}.o kd_codec kd_la kd_fmt kd_kern kd_gpu_none kd_base VERBATIM)
    add_custom_target(gpu_${name}_built DEPENDS ${program})
    add_dependencies(gpu_emulated gpu_${name}_built)
    add_test(NAME gpu/${name} COMMAND ${program})
    kd_test(gpu/${name} ${f} cli 120 "")
  endforeach()
  # A whole model over an emulated device, and an engine over that: the programs of the devices.
  set(device ${CMAKE_BINARY_DIR}/gpu_device_emulated)
  add_custom_command(OUTPUT ${device}.o
                     COMMAND ${KD_CLANGXX} -std=c++17 -O2 -march=x86-64-v3 -ffp-contract=off -Wall -Wextra -Werror
                             -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tests -MD -MF ${device}.d
                             -c ${CMAKE_SOURCE_DIR}/tests/gpu/device_emulated.cpp -o ${device}.o
                     DEPENDS tests/gpu/device_emulated.cpp DEPFILE ${device}.d VERBATIM)
  add_custom_target(gpu_device_emulated DEPENDS ${device}.o)
  foreach(name model serve)
    add_executable(gpu_emulated_${name} tests/gpu/${name}_device.c)
    add_dependencies(gpu_emulated_${name} gpu_device_emulated)
    set_target_properties(gpu_emulated_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                          LINK_DEPENDS ${device}.o)
    target_include_directories(gpu_emulated_${name} PRIVATE tests)
    target_compile_definitions(gpu_emulated_${name} PRIVATE KD_EMULATED)
    target_link_libraries(gpu_emulated_${name} PRIVATE ${device}.o kd_${name} kd_test_flags stdc++)
    add_test(NAME gpu/emulated_${name} COMMAND gpu_emulated_${name})
    kd_test(gpu/emulated_${name} tests/gpu/${name}_device.c cli 120 "")
  endforeach()
  # The program with an emulated device for conversions.
  set(device ${CMAKE_BINARY_DIR}/gpu_program_emulated)
  add_custom_command(OUTPUT ${device}.o
                     COMMAND ${KD_CLANGXX} -std=c++17 -O2 -march=x86-64-v3 -ffp-contract=off -Wall -Wextra -Werror
                             -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/tests
                             -I${CMAKE_SOURCE_DIR}/tests/gpu/fake -MD -MF ${device}.d
                             -c ${CMAKE_SOURCE_DIR}/tests/gpu/program_emulated.cpp -o ${device}.o
                     DEPENDS tests/gpu/program_emulated.cpp DEPFILE ${device}.d VERBATIM)
  add_custom_target(gpu_program_emulated DEPENDS ${device}.o)
  add_executable(kondense_emulated src/main.c)
  add_dependencies(kondense_emulated gpu_program_emulated gpu_device_emulated)
  set_target_properties(kondense_emulated PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        LINK_DEPENDS "${device}.o;${CMAKE_BINARY_DIR}/gpu_device_emulated.o")
  target_link_libraries(kondense_emulated PRIVATE ${device}.o ${CMAKE_BINARY_DIR}/gpu_device_emulated.o kd_cmd kd_test_flags stdc++)
  add_test(NAME gpu/emulated_program COMMAND bash ${CMAKE_SOURCE_DIR}/tests/gpu/emulated_program.sh)
  kd_test(gpu/emulated_program tests/gpu/emulated_program.sh cli 120
          "KONDENSE=$<TARGET_FILE:kondense_emulated>")
endif()

# The style of the tree: once, with the build that ships.
find_program(KD_PYTHON python3)
if(KD_PYTHON AND NOT CMAKE_CROSSCOMPILING AND NOT KD_SAN)
  add_test(NAME style/layers COMMAND ${KD_PYTHON} ${CMAKE_SOURCE_DIR}/tools/layers.py ${CMAKE_SOURCE_DIR})
  add_test(NAME style/tidy COMMAND ${KD_PYTHON} ${CMAKE_SOURCE_DIR}/tools/tidy.py ${CMAKE_SOURCE_DIR}
           --build ${CMAKE_BINARY_DIR} --kondense $<TARGET_FILE:kondense> --cc ${CMAKE_C_COMPILER})
  add_test(NAME style/api COMMAND ${KD_PYTHON} ${CMAKE_SOURCE_DIR}/tools/api_table.py ${CMAKE_BINARY_DIR} --check)
  set_tests_properties(style/layers style/tidy style/api PROPERTIES LABELS style TIMEOUT 120)
endif()
