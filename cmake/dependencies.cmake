# Third-party packages (all in Debian 12), options and compiler flags.

option(DSV4_WERROR "Warnings are errors; off in ./start, whose user may have another compiler" ON)
set(unity OFF)
if(DEFINED ENV{DSV4_UNITY})
  set(unity $ENV{DSV4_UNITY})
endif()
option(DSV4_UNITY "Compile several sources at a time: less time in all, more after an edit" ${unity})
option(DSV4_TESTS "Build tests and benchmarks" ON)
option(DSV4_FUZZ "Build libFuzzer targets (clang)" OFF)
option(DSV4_CUDA "Build the CUDA implementations and the GPU engine (nvcc)" OFF)
option(DSV4_PACKAGES "Man pages, C libraries and Debian packages of a release (tools/release.sh)" OFF)
option(DSV4_REPRODUCIBLE "Two builds in one folder give the same bytes once stripped (docs/releases.md)" OFF)
set(DSV4_SANITIZE "" CACHE STRING "Sanitizers of this build: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

if(DSV4_CUDA)
  include(cuda)
endif()

find_package(fmt REQUIRED)
find_package(hwy REQUIRED)
# GCC's OpenMP library as a static one, before FindOpenMP finds the shared one: the constructor of apps/threads.cc then
# runs before the library reads its environment.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.a
                  OUTPUT_VARIABLE gomp OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(IS_ABSOLUTE "${gomp}")
    set(OpenMP_gomp_LIBRARY ${gomp} CACHE FILEPATH "static OpenMP run-time library" FORCE)
  else()
    message(WARNING "no libgomp.a beside the compiler: waiting threads spin for milliseconds unless GOMP_SPINCOUNT is set")
  endif()
endif()
find_package(OpenMP REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
set(OPENSSL_USE_STATIC_LIBS ${DSV4_CUDA})
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(CURL_INCLUDE curl/curl.h REQUIRED)
find_path(ZMQ_INCLUDE zmq.h REQUIRED)
if(DSV4_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

# What the layers link. fmt is one static unit in every preset (cmake/fmt.cc). The CUDA build makes one program that runs
# where only a driver is installed, and Debian has Highway as a shared library only: the CUDA build uses the one
# instruction set that every GPU host has, which needs nothing of Highway's library.
add_library(dsv4_fmt STATIC cmake/fmt.cc)
set_target_properties(dsv4_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(dsv4_hwy INTERFACE)
add_library(dsv4_pcre2 INTERFACE)
add_library(dsv4_editline INTERFACE)
add_library(dsv4_xxhash INTERFACE)  # its functions are inline: no library
target_include_directories(dsv4_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE})
add_library(dsv4_curl INTERFACE)  # loaded when something is fetched (docs/adr/0028): headers alone
target_include_directories(dsv4_curl SYSTEM INTERFACE ${CURL_INCLUDE})
target_link_libraries(dsv4_curl INTERFACE ${CMAKE_DL_LIBS})
add_library(dsv4_zmq INTERFACE)  # loaded when it is wanted (apps/zmq.h): no library
target_include_directories(dsv4_zmq SYSTEM INTERFACE ${ZMQ_INCLUDE})
target_link_libraries(dsv4_zmq INTERFACE ${CMAKE_DL_LIBS})
add_library(dsv4_boost INTERFACE)
target_link_libraries(dsv4_boost INTERFACE Boost::headers)
# Only HTTP needs Asio, and this part of it not at all.
target_compile_definitions(dsv4_boost INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_DISABLE_BOOST_DATE_TIME)
if(DSV4_CUDA)
  # Under nvcc fmt takes constexpr for unsupported, which its C++20 half contradicts.
  target_compile_definitions(dsv4_fmt INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_compile_definitions(dsv4_hwy INTERFACE HWY_COMPILE_ONLY_STATIC)
  find_library(PCRE2_STATIC libpcre2-8.a REQUIRED)
  target_link_libraries(dsv4_pcre2 INTERFACE ${PCRE2_STATIC})
  foreach(name edit tinfo bsd)  # in the order of their needs
    find_library(${name}_STATIC lib${name}.a REQUIRED)
    target_link_libraries(dsv4_editline INTERFACE ${${name}_STATIC})
  endforeach()
else()
  target_link_libraries(dsv4_hwy INTERFACE hwy::hwy)
  target_link_libraries(dsv4_pcre2 INTERFACE PkgConfig::PCRE2)
  target_link_libraries(dsv4_editline INTERFACE PkgConfig::EDIT)
endif()

# Folders of the build are mapped out of messages. Without ccache: its base_dir rewrites the paths before the compiler can.
if(DSV4_REPRODUCIBLE)
  foreach(folder ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})  # of two that match, GCC takes the last
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${folder}/=>"
                        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${folder}/=>")
  endforeach()
endif()

add_library(dsv4_flags INTERFACE)
target_include_directories(dsv4_flags INTERFACE ${CMAKE_SOURCE_DIR})
# Contraction stays off so that the bits are those of the source; fused multiply-add is called by name.
target_compile_options(dsv4_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers;-ffp-contract=off>")
# A sanitizer changes what the optimizer sees, and GCC 12 then warns of uninitialized values inside std::regex; clang
# compiles the ThreadSanitizer build and has warnings of its own.
if(DSV4_WERROR AND NOT DSV4_SANITIZE)
  target_compile_options(dsv4_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(DSV4_CUDA)
  target_link_libraries(dsv4_flags INTERFACE dsv4_cuda_flags)
endif()
# AVX2 and AVX-512 are what counts; an older processor runs Highway's one-lane target. Fewer targets keep
# compile time down: under a sanitizer AVX2 stands for AVX-512 too (./check says so), whose accesses the guard pages of
# the op tests check at full speed.
set(disabled_targets "HWY_SSE4|HWY_SSSE3")
option(DSV4_NATIVE "Only the SIMD target of this machine, for builds that stay here" OFF)
set(has_avx512 TRUE)
if(DSV4_NATIVE AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_flags REGEX "^flags" LIMIT_COUNT 1)
  foreach(flag f bw cd dq vl)
    if(NOT cpu_flags MATCHES " avx512${flag}( |$)")
      set(has_avx512 FALSE)
    endif()
  endforeach()
  if(has_avx512)
    string(APPEND disabled_targets "|HWY_AVX2")
  endif()
endif()
if(DSV4_SANITIZE OR NOT has_avx512)
  string(APPEND disabled_targets "|HWY_AVX3|HWY_AVX3_DL")
endif()
target_compile_definitions(dsv4_flags INTERFACE "HWY_DISABLED_TARGETS=(${disabled_targets})")
if(DSV4_SANITIZE)
  target_compile_definitions(dsv4_flags INTERFACE DSV4_SANITIZED)
  target_compile_options(dsv4_flags INTERFACE
    -fsanitize=${DSV4_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  if(DSV4_SANITIZE MATCHES "undefined")
    # An access through null ends in AddressSanitizer's report as well; without these two checks tests compile in four
    # fifths of the time.
    target_compile_options(dsv4_flags INTERFACE -fno-sanitize=null,vptr)
  endif()
  target_link_options(dsv4_flags INTERFACE -fsanitize=${DSV4_SANITIZE})
endif()
if(DSV4_FUZZ)
  # Coverage feedback; the fuzzers themselves link libFuzzer (fuzz/CMakeLists.txt).
  target_compile_options(dsv4_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
