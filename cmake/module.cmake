# dsv4_layer(NAME [UNITY|GLUE] [LIBS ...])   the library dsv4_NAME from dsv4/NAME/*.cc, linked to what layers.txt allows
# dsv4_ops(OP ...)              the library dsv4_ops from the op folders; tests and benchmarks beside them
# dsv4_test(NAME SOURCES ... LIBS ... [LABELS ...])
#
# With DSV4_UNITY, sources of a layer with UNITY are compiled a dozen at a time: the JSON library is then read once, not a dozen
# times. ./start and the CUDA preset of ./check do so. An unnamed namespace of one file is then that of the others too.
#
# By file name: X_test.cc is a test, X_bench.cc a benchmark, X_oracle.cc an fp64 oracle. Oracles go to
# dsv4_oracles, which nothing but tests and benchmarks links. X_cuda.cc and X.cu, and the whole device layer,
# are in the CUDA build only.

include(GoogleTest)

function(dsv4_allowed_layers layer out)
  file(STRINGS ${CMAKE_SOURCE_DIR}/layers.txt line REGEX "^${layer}:")
  string(REGEX REPLACE "^[a-z]+: *" "" below "${line}")
  separate_arguments(below)
  list(TRANSFORM below PREPEND dsv4_)
  set(${out} ${below} PARENT_SCOPE)
endfunction()

function(dsv4_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT DSV4_TESTS)
    return()
  endif()
  # ThreadSanitizer finds nothing in layers without threads, nor in the programs of the command line, whose threads
  # are those of the layers: ./check says so.
  set(threaded ${TEST_LIBS})
  list(FILTER threaded INCLUDE REGEX "^dsv4_(cpu|ops|capi|comm|hub|cache|model|convert|engine|plan|server|quality)$")
  if(DSV4_SANITIZE STREQUAL "thread" AND (NOT threaded OR name MATCHES "^cli|_replay$"))
    return()
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LIBS} dsv4_flags GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)  # what takes time is in the libraries
  if(DSV4_SANITIZE MATCHES "undefined")
    # UndefinedBehaviorSanitizer checks the libraries: without it the code of tests compiles in three fifths of the time.
    set_source_files_properties(${TEST_SOURCES} PROPERTIES COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    TEST_PREFIX ${name}/ PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT 600
    # Tests run side by side: threads that spin at barriers would starve each other.
    ENVIRONMENT "OMP_WAIT_POLICY=passive;OMP_NUM_THREADS=1")
endfunction()

# Tests of a folder: slow ones (X_slow_test.cc) get their own label.
function(dsv4_folder_tests folder prefix)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dsv4/${folder}/*_test.cc)
  foreach(source ${tests})
    cmake_path(GET source STEM stem)
    set(label unit)
    if(stem MATCHES "_slow_test$")
      set(label slow)
    endif()
    dsv4_test(${prefix}${stem} SOURCES ${source} LIBS ${ARGN} LABELS ${label})
    if(prefix STREQUAL "op_")
      add_dependencies(op_tests ${prefix}${stem})
    endif()
  endforeach()
endfunction()

# Replaces every source X_instance.cu or instance.cc of the list by one generated file for each value of its lines
#
#   // Instances: KvFormatV4, 8 | KvFormatV4, 16
#
# which defines DSV4_INSTANCE as this value and includes the source: kernels that are compiled in parallel.
function(dsv4_expand_instances list_name)
  set(expanded)
  foreach(source ${${list_name}})
    if(NOT source MATCHES "instance\\.(cu|cc)$")
      list(APPEND expanded ${source})
      continue()
    endif()
    file(STRINGS ${source} lines REGEX "^// Instances: ")
    if(NOT lines)
      message(FATAL_ERROR "${source}: want a line '// Instances: VALUE | VALUE ...'")
    endif()
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(GET path PARENT_PATH folder)
    cmake_path(GET path EXTENSION LAST_ONLY extension)
    list(TRANSFORM lines REPLACE "^// Instances: *" "")
    string(REGEX REPLACE " *[|] *" ";" values "${lines}")
    foreach(value ${values})
      string(MAKE_C_IDENTIFIER "${value}" name)
      string(REGEX REPLACE "_+" "_" name "${name}")
      set(file ${CMAKE_BINARY_DIR}/instances/${folder}/${name}${extension})
      file(CONFIGURE OUTPUT ${file} CONTENT "#define DSV4_INSTANCE ${value}\n#include \"${path}\"\n" @ONLY)
      list(APPEND expanded ${file})
    endforeach()
  endforeach()
  set(${list_name} ${expanded} PARENT_SCOPE)
endfunction()

# Sources of a folder that this build has. An op's implementations may lie a folder deeper (ops/FLOOR/OP/IMPL/).
function(dsv4_sources folder out)
  set(below ${CMAKE_SOURCE_DIR}/dsv4/${folder})
  set(patterns ${below}/*.cc ${below}/*.cu)
  if(folder MATCHES "^ops/")
    list(APPEND patterns ${below}/*/*.cc ${below}/*/*.cu ${below}/*/instances/*.cc ${below}/*/instances/*.cu)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(NOT DSV4_CUDA)
    list(FILTER sources EXCLUDE REGEX "(_cuda\\.cc|\\.cu|/device/[^/]*)$")
  endif()
  dsv4_expand_instances(sources)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

function(dsv4_unity target)
  if(DSV4_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()

function(dsv4_layer layer)
  cmake_parse_arguments(LAYER "UNITY;GLUE" "" "LIBS" ${ARGN})
  dsv4_sources(${layer} sources)
  list(FILTER sources EXCLUDE REGEX "_(test|bench|oracle)\\.cc$")
  if(NOT sources)
    add_library(dsv4_${layer} INTERFACE)
    return()
  endif()
  add_library(dsv4_${layer} STATIC ${sources})
  if(LAYER_UNITY OR LAYER_GLUE)
    dsv4_unity(dsv4_${layer})
  endif()
  if(LAYER_GLUE AND NOT DSV4_FUZZ)  # fuzzers run nothing else
    target_compile_options(dsv4_${layer} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  dsv4_allowed_layers(${layer} below)
  target_link_libraries(dsv4_${layer} PUBLIC ${below} ${LAYER_LIBS} dsv4_fmt PRIVATE dsv4_flags)
  target_include_directories(dsv4_${layer} PUBLIC ${CMAKE_SOURCE_DIR})
  dsv4_folder_tests(${layer} "" dsv4_${layer} dsv4_harness)
endfunction()

# The header generated/op_list.h: for_each_op(visit) calls visit(op) for every op that the headers of the folders declare
# ("extern const Op<...> name;").
function(dsv4_op_list)
  set(includes "")
  set(visits "")
  foreach(op ${ARGN})
    file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/dsv4/ops/${op}/*.h)
    foreach(header ${headers})
      file(STRINGS ${CMAKE_SOURCE_DIR}/${header} declared REGEX "^extern const Op<[A-Za-z0-9]+> [a-z0-9_]+;")
      if(declared)
        set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
        string(APPEND includes "#include \"${header}\"\n")
      endif()
      foreach(line ${declared})
        string(REGEX REPLACE "^.*> ([a-z0-9_]+);?$" "\\1" name "${line}")
        string(APPEND visits "  visit(${name});\n")
      endforeach()
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/op_list.h CONTENT
"// Every op of this build, from the headers of dsv4/ops. Generated by cmake/module.cmake.

#pragma once

${includes}
namespace dsv4 {

template <class Visit>
void for_each_op(const Visit& visit) {
${visits}}

}  // namespace dsv4
" @ONLY)
endfunction()

function(dsv4_ops)
  dsv4_op_list(${ARGN})
  dsv4_sources(ops sources)
  foreach(op ${ARGN})
    dsv4_sources(ops/${op} op_sources)
    list(APPEND sources ${op_sources})
  endforeach()
  list(REMOVE_DUPLICATES sources)  # a folder and one below it may both be named
  set(oracles ${sources})
  list(FILTER oracles INCLUDE REGEX "_oracle\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|oracle)\\.cc$")
  # Kernels for sm_90a only, by file or folder name, are not compiled for the portable target.
  set(sm90_sources ${sources})
  list(FILTER sm90_sources INCLUDE REGEX "/sm90[^/]*(/.*)?\\.cu$")
  if(sm90_sources)
    list(REMOVE_ITEM sources ${sm90_sources})
  endif()
  dsv4_allowed_layers(ops below)
  set(libraries ${below} dsv4_fmt OpenMP::OpenMP_CXX dsv4_hwy)
  add_library(dsv4_ops STATIC ${sources})
  target_link_libraries(dsv4_ops PUBLIC ${libraries} PRIVATE dsv4_flags)
  target_include_directories(dsv4_ops PUBLIC ${CMAKE_BINARY_DIR}/generated)
  if(DSV4_FUZZ)
    # Fuzzers link the ops and run none of them. The options of a source come after those of its target.
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-O0;-fno-sanitize=all")
  endif()
  if(sm90_sources)
    add_library(dsv4_ops_sm90 OBJECT ${sm90_sources})
    set_target_properties(dsv4_ops_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_link_libraries(dsv4_ops_sm90 PRIVATE ${libraries} dsv4_flags)
    target_sources(dsv4_ops PRIVATE $<TARGET_OBJECTS:dsv4_ops_sm90>)
  endif()
  if(NOT DSV4_TESTS)
    return()
  endif()
  add_library(dsv4_oracles STATIC ${oracles})
  target_link_libraries(dsv4_oracles PUBLIC dsv4_ops PRIVATE dsv4_flags)
  add_custom_target(op_tests)  # compiles all of them
  foreach(op ${ARGN})
    dsv4_folder_tests(ops/${op} op_ dsv4_ops dsv4_oracles dsv4_harness)
  endforeach()
  dsv4_folder_tests(ops/gemm/sm90 op_ dsv4_ops dsv4_harness)  # plans
  dsv4_folder_tests(ops/gemm/cuda op_ dsv4_ops dsv4_harness)
endfunction()
