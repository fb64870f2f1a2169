# How our targets are built: mneme_library(), mneme_executable(), mneme_test(), mneme_isa_sources(),
# and the interface target `mneme_options` with the include root, warnings and sanitizers.
#
# Source paths are given from the repository root ("kernels/tensor.cc") or from the calling folder.
include(CheckCXXCompilerFlag)

# An object of one build folder, or one clone, need not be compiled again in another: paths below the
# source folder are told to the cache relative to where the compiler runs.
find_program(MNEME_CCACHE ccache)
if(MNEME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=true ${MNEME_CCACHE})
  if(MNEME_CUDA)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()

add_library(mneme_options INTERFACE)
target_include_directories(mneme_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(mneme_options INTERFACE Threads::Threads)
# Contracting a*b+c behind our back would make results depend on how a loop was compiled; the
# kernels write their fused operations out.
target_compile_options(mneme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Designated initializers name what differs from the defaults; the rest is left out on purpose.
target_compile_options(mneme_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wnon-virtual-dtor;-Wno-missing-field-initializers>)
# Only Clang understands ABSL_GUARDED_BY and its like.
target_compile_options(mneme_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wthread-safety>)
if(MNEME_WERROR)
  target_compile_options(mneme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(MNEME_SANITIZE)
  list(JOIN MNEME_SANITIZE "," mneme_sanitizers)
  target_compile_definitions(mneme_options INTERFACE MNEME_SANITIZED)  # GCC and Clang tell it differently.
  # -UNDEBUG: where errors are looked for, DCHECK looks too.
  # What calculates is optimised (MNEME_CALCULATES); for the rest that takes half as long again to compile.
  target_compile_options(mneme_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${mneme_sanitizers};-fno-omit-frame-pointer;-g1;-UNDEBUG>
    $<$<COMPILE_LANGUAGE:CXX>:$<IF:$<BOOL:$<TARGET_PROPERTY:MNEME_CALCULATES>>,-O1,-O0>>)
  target_link_options(mneme_options INTERFACE -fsanitize=${mneme_sanitizers})
  # Instrumentation defeats the flow analysis behind this warning.
  target_compile_options(mneme_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if("undefined" IN_LIST MNEME_SANITIZE)
    target_compile_options(mneme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
    # A third of the time of compiling, to find what AddressSanitizer stops at as well.
    target_compile_options(mneme_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size,nonnull-attribute,returns-nonnull-attribute>)
    # Where a test itself is undefined is not worth twice the time of compiling it.
    target_compile_options(mneme_options INTERFACE
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:MNEME_TEST>>>:-fno-sanitize=undefined>)
  endif()
endif()
if("address" IN_LIST MNEME_SANITIZE)
  add_library(mneme_asan_options OBJECT ${PROJECT_SOURCE_DIR}/cmake/asan/default_options.cc)
  target_link_libraries(mneme_asan_options PRIVATE mneme_options)
endif()
if("thread" IN_LIST MNEME_SANITIZE)
  add_library(mneme_tsan_abseil OBJECT ${PROJECT_SOURCE_DIR}/cmake/tsan/abseil_mutex.cc)
  target_link_libraries(mneme_tsan_abseil PRIVATE mneme_options absl::synchronization absl::time)
endif()
find_program(MNEME_LLD ld.lld)
if(MNEME_LLD)
  target_link_options(mneme_options INTERFACE -fuse-ld=lld)
endif()

# mneme_resolve(<variable> sources...): absolute paths, the repository root tried first.
function(mneme_resolve variable)
  set(resolved)
  foreach(source ${ARGN})
    if(IS_ABSOLUTE ${source} OR source MATCHES "^\\$<")
      list(APPEND resolved ${source})
    elseif(EXISTS ${PROJECT_SOURCE_DIR}/${source})
      list(APPEND resolved ${PROJECT_SOURCE_DIR}/${source})
    else()
      list(APPEND resolved ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    endif()
  endforeach()
  set(${variable} ${resolved} PARENT_SCOPE)
endfunction()

# mneme_library(<name> [CALCULATES] SOURCES ... DEPS ...): static library mneme_<name>, known as
# mneme::<name>. With MNEME_UNITY up to MNEME_UNITY_BATCH of its sources are compiled as one, so names in their
# anonymous namespaces must differ. CALCULATES: is worth optimising beside sanitizers, too.
function(mneme_library name)
  cmake_parse_arguments(ARG "CALCULATES" "" "SOURCES;DEPS" ${ARGN})
  mneme_resolve(sources ${ARG_SOURCES})
  add_library(mneme_${name} STATIC ${sources})
  add_library(mneme::${name} ALIAS mneme_${name})
  target_link_libraries(mneme_${name} PUBLIC mneme_options ${ARG_DEPS})
  if(MNEME_SANITIZE)  # Built if a test needs it.
    set_target_properties(mneme_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  set_target_properties(mneme_${name} PROPERTIES UNITY_BUILD ${MNEME_UNITY} UNITY_BUILD_BATCH_SIZE ${MNEME_UNITY_BATCH}
                        MNEME_CALCULATES ${ARG_CALCULATES})
endfunction()

# Links what every program needs beside its own dependencies.
function(mneme_link_program name)
  target_link_libraries(${name} PRIVATE mneme_options ${ARGN})
  if(TARGET mneme_asan_options)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:mneme_asan_options>)
  endif()
  if(TARGET mneme_tsan_abseil)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:mneme_tsan_abseil>)
    target_link_libraries(${name} PRIVATE absl::synchronization absl::time ${CMAKE_DL_LIBS})
  endif()
endfunction()

# mneme_executable(<name> SOURCES ... DEPS ...): a program, in <build>/bin.
function(mneme_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  mneme_resolve(sources ${ARG_SOURCES})
  add_executable(${name} ${sources})
  mneme_link_program(${name} ${ARG_DEPS})
  if(MNEME_SANITIZE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Left out beside sanitizers, of the programs that are built there: what compares the numbers of code that
# other cases run (wide products, long sequences, the same bits or tokens in other batches, the reference),
# and the longest of what is one case.
set(MNEME_UNSANITIZED_CASES *BigGroups* *LongRun* *TwentyThousand* *SameBits* *NoBit* *NoToken* */*reference_float64
    *NeuralMemoryShapesTest.* *GroupsOfHeads* *ManyRequests*
    *ALargeStore* *ForEnwik8* *GreedyRowsAlone* *OfPatternsHaveTheSizes* *EveryTokenOfEverySchedule*
    *WhatItsEquationSays* *AChoiceThatStops* *AnEditedConversationIsAsIf* *RefusesMacros* CrashTest.NothingAcknowledged*)

# mneme_test(<path/foo_test.cc> [ALONE] [GPU] [UNSANITIZED] [PROGRAM name] [SOURCES more.cc ...] [DEPS ...]
# [LABELS ...] [TIMEOUT seconds]): adds the file to a test program and registers its cases; the label is
# `unit`. The program is that of the calling folder (tests/base -> base_tests) unless PROGRAM names
# another; with MNEME_UNITY its files are compiled as one, as those of a library are.
#   ALONE    a program of its own, foo_test
#   GPU      its cases over backends also run on the GPU, as one test gpu.foo_test with the label `gpu`,
#            if the CUDA backend is built. It is then a program of its own, as those run side by side,
#            and one by one under compute-sanitizer; without CUDA it belongs to <folder>_backend_tests.
#   UNSANITIZED  not built beside sanitizers: it compares numbers for long, of code that others run as
#            well, or runs programs, which are not built there either
# A program has the labels and the time limit of its first file.
#
# Cases are listed when ctest runs, so that building runs nothing.
function(mneme_test source)
  cmake_parse_arguments(ARG "ALONE;GPU;UNSANITIZED" "PROGRAM;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(ARG_UNSANITIZED AND MNEME_SANITIZE)
    return()
  endif()
  mneme_resolve(sources ${source} ${ARG_SOURCES})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(ARG_ALONE OR (ARG_GPU AND MNEME_CUDA))
    get_filename_component(name ${source} NAME_WE)
  elseif(ARG_PROGRAM)
    set(name ${ARG_PROGRAM})
  elseif(ARG_GPU)
    set(name ${folder}_backend_tests)
  else()
    set(name ${folder}_tests)
  endif()
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${sources})
    target_link_libraries(${name} PRIVATE ${ARG_DEPS})
    return()
  endif()
  add_executable(${name} ${sources})
  mneme_link_program(${name} ${ARG_DEPS} mneme_deps::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/bin
                        UNITY_BUILD ${MNEME_UNITY} UNITY_BUILD_BATCH_SIZE ${MNEME_UNITY_BATCH} MNEME_TEST ON)
  # Optimising tests takes half as long again as compiling them; those of backends calculate.
  if(NOT ARG_GPU)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(ARG_GPU AND MNEME_CUDA)
    add_test(NAME gpu.${name} COMMAND ${name} --gtest_filter=*cuda*:Cuda*
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(gpu.${name} PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT}
                         ENVIRONMENT MNEME_TEST_DEVICE=cuda)
    set_property(GLOBAL APPEND PROPERTY MNEME_GPU_TESTS ${name})
  endif()
  list(GET ARG_LABELS 0 first_label)
  if(MNEME_SANITIZE)
    # To start a program costs more there than most cases do, so that a test is a quarter of a program,
    # which prints what failed only: a log that is cut still holds it.
    list(JOIN MNEME_UNSANITIZED_CASES ":" cases)
    foreach(shard RANGE 3)
      add_test(NAME ${name}.${shard} COMMAND ${name} --gtest_filter=-${cases}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      set_tests_properties(${name}.${shard} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1800
                           ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${shard};GTEST_BRIEF=1")
    endforeach()
    return()
  endif()
  gtest_discover_tests(${name}
    NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES LABELS "${first_label}" TIMEOUT ${ARG_TIMEOUT})
  # gtest_discover_tests flattens a list of labels into one label and a stray property, so several
  # are set by a script that ctest reads after the list of cases.
  list(LENGTH ARG_LABELS count)
  if(count GREATER 1)
    set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
    file(WRITE ${script} "foreach(case IN LISTS ${name}_TESTS)\n"
         "  set_tests_properties(\"\${case}\" PROPERTIES LABELS \"${ARG_LABELS}\")\nendforeach()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
  endif()
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(MNEME_ISAS baseline avx2 avx512 avx512_bf16 amx)
else()
  set(MNEME_ISAS baseline)
endif()
if(MNEME_SANITIZE)  # The others are the same sources again.
  set(MNEME_ISAS baseline)
endif()
set(MNEME_ISA_FLAGS_baseline)
set(MNEME_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(MNEME_ISA_FLAGS_avx512 ${MNEME_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(MNEME_ISA_FLAGS_avx512_bf16 ${MNEME_ISA_FLAGS_avx512} -mavx512bf16)
set(MNEME_ISA_FLAGS_amx ${MNEME_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
# A template instantiated in two files is merged by the linker into either copy: the one with AVX-512
# could end up serving code that has to run anywhere. Without weak symbols each file keeps its own.
check_cxx_compiler_flag(-fno-weak MNEME_HAVE_NO_WEAK)

# mneme_isa_sources(<target> sources...): compiles each source once per instruction set with
# MNEME_ISA=<isa>; its code lives in namespace mneme::<isa>. The instruction sets that were built
# are in MNEME_ISAS.
function(mneme_isa_sources target)
  mneme_resolve(sources ${ARGN})
  foreach(isa ${MNEME_ISAS})
    add_library(${target}_${isa} OBJECT ${sources})
    target_link_libraries(${target}_${isa} PRIVATE mneme_options)
    set_target_properties(${target}_${isa} PROPERTIES MNEME_CALCULATES ON EXCLUDE_FROM_ALL ON)
    target_compile_definitions(${target}_${isa} PRIVATE MNEME_ISA=${isa} MNEME_ISA_${isa}=1)
    # Aligned, or what else the program holds moves its hot loops, and prompts by 5 to 10 %.
    target_compile_options(${target}_${isa} PRIVATE ${MNEME_ISA_FLAGS_${isa}}
      $<$<CONFIG:Release>:-O3 -falign-functions=64 -falign-loops=32>
      $<$<BOOL:${MNEME_HAVE_NO_WEAK}>:-fno-weak>)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${isa}>)
    target_compile_definitions(${target} PRIVATE MNEME_BUILT_${isa})
    if(MNEME_TESTS AND MNEME_HAVE_NO_WEAK AND NOT MNEME_SANITIZE)
      add_test(NAME ${target}_${isa}_symbols
        COMMAND ${PROJECT_SOURCE_DIR}/tools/check_isa_symbols.py ${isa}
                $<TARGET_OBJECTS:${target}_${isa}>
        COMMAND_EXPAND_LISTS)
      set_tests_properties(${target}_${isa}_symbols PROPERTIES LABELS unit)
    endif()
  endforeach()
endfunction()

if(MNEME_TESTS)
  include(GoogleTest)
endif()
