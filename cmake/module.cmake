# dsv4_layer(NAME [LIBS ...])   the library dsv4_NAME from dsv4/NAME/*.cc, linked to what layers.txt allows
# dsv4_ops(OP ...)              the library dsv4_ops from the op folders; tests and benchmarks beside them
# dsv4_test(NAME SOURCES ... LIBS ... [LABELS ...])
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
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LIBS} dsv4_flags GTest::gtest_main)
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
  endforeach()
endfunction()

# Sources of a folder that this build has.
function(dsv4_sources folder out)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dsv4/${folder}/*.cc ${CMAKE_SOURCE_DIR}/dsv4/${folder}/*.cu)
  if(NOT DSV4_CUDA)
    list(FILTER sources EXCLUDE REGEX "(_cuda\\.cc|\\.cu|/device/[^/]*)$")
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

function(dsv4_layer layer)
  cmake_parse_arguments(LAYER "" "" "LIBS" ${ARGN})
  dsv4_sources(${layer} sources)
  list(FILTER sources EXCLUDE REGEX "_(test|bench|oracle)\\.cc$")
  if(NOT sources)
    add_library(dsv4_${layer} INTERFACE)
    return()
  endif()
  add_library(dsv4_${layer} STATIC ${sources})
  dsv4_allowed_layers(${layer} below)
  target_link_libraries(dsv4_${layer} PUBLIC ${below} ${LAYER_LIBS} dsv4_fmt PRIVATE dsv4_flags)
  target_include_directories(dsv4_${layer} PUBLIC ${CMAKE_SOURCE_DIR})
  dsv4_folder_tests(${layer} "" dsv4_${layer} dsv4_harness)
endfunction()

function(dsv4_ops)
  dsv4_sources(ops sources)
  foreach(op ${ARGN})
    dsv4_sources(ops/${op} op_sources)
    list(APPEND sources ${op_sources})
  endforeach()
  set(oracles ${sources})
  list(FILTER oracles INCLUDE REGEX "_oracle\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|oracle)\\.cc$")
  add_library(dsv4_ops STATIC ${sources})
  dsv4_allowed_layers(ops below)
  target_link_libraries(dsv4_ops PUBLIC ${below} dsv4_fmt OpenMP::OpenMP_CXX dsv4_hwy PRIVATE dsv4_flags)
  if(NOT DSV4_TESTS)
    return()
  endif()
  add_library(dsv4_oracles STATIC ${oracles})
  target_link_libraries(dsv4_oracles PUBLIC dsv4_ops PRIVATE dsv4_flags)
  foreach(op ${ARGN})
    dsv4_folder_tests(ops/${op} op_ dsv4_ops dsv4_oracles dsv4_harness)
  endforeach()
endfunction()
