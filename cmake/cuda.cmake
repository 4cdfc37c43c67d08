# The CUDA build: compiler, targets, flags, and everything but the CUDA libraries linked statically.

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "no nvcc found: the cuda preset needs the CUDA toolkit 13 (put nvcc on PATH, or set CUDACXX)")
endif()
# Machine code for Hopper, and for anything else from sm_80 on code that the driver can compile further.
set(DSV4_CUDA_ARCHS "80;90a-real" CACHE STRING "CUDA targets, as CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${DSV4_CUDA_ARCHS})
enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
find_package(CUDAToolkit REQUIRED)
# Registers, stack and spills of every kernel, beside its object for tools/check_ptxas.py.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/ptxas_log.sh)
set(line_tables "-lineinfo;")  # of kernels, for profilers
if(DSV4_REPRODUCIBLE)
  list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER --seed)
  set(line_tables "")  # they have the folders of the build
endif()
if(CCACHE)
  list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(dsv4_cuda_flags INTERFACE)
target_compile_definitions(dsv4_cuda_flags INTERFACE DSV4_CUDA=1)
# formats/ is constexpr code for host and device.
# GCC counts AES among haswell's instructions no more, but Highway wants it before it takes the processor for AVX2.
target_compile_options(dsv4_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;${line_tables}-Xptxas=-v;-Xcompiler=-Wall>"
  "$<$<COMPILE_LANGUAGE:CXX>:-march=haswell;-maes>")
if(DSV4_WERROR)
  target_compile_options(dsv4_cuda_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
endif()
target_link_libraries(dsv4_cuda_flags INTERFACE CUDA::cudart_static)
target_link_options(dsv4_cuda_flags INTERFACE -static-libstdc++ -static-libgcc)
