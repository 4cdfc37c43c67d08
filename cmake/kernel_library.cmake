# lib/libdsv4_kernels.so: include/*.h for programs that are not ours. A CPU build has it for the tests of the Python
# package only. No symbol but the C ones is
# visible, and nothing is needed but the C library, libgomp and a driver (Debian's static libgomp cannot be part
# of a shared object).
#
# Its objects are position independent: whole layers up to device, and of ops the folders in DSV4_LIBRARY_OPS, since the
# linker takes only what the C functions reach.

set(DSV4_LIBRARY_OPS model/sparse_mla xattn/attention xattn/scores xattn/select xattn/prefill
    gemm kbit parts/quant parts/dequantize parts/linear parts/expert_linear parts/image_linear parts/experts)

set(archives)
foreach(layer ops device cpu formats tensor base)
  get_target_property(type dsv4_${layer} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    list(APPEND archives dsv4_${layer})
  endif()
endforeach()
foreach(archive ${archives})
  if(NOT archive STREQUAL dsv4_ops)
    set_target_properties(${archive} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
endforeach()

file(GLOB op_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dsv4/ops/*.cc)
foreach(op ${DSV4_LIBRARY_OPS})
  dsv4_sources(ops/${op} folder)
  list(APPEND op_sources ${folder})
endforeach()
list(FILTER op_sources EXCLUDE REGEX "_(test|bench|oracle)\\.cc$")
set_property(SOURCE ${op_sources} APPEND PROPERTY COMPILE_OPTIONS
             $<IF:$<COMPILE_LANGUAGE:CUDA>,-Xcompiler=-fPIC,-fPIC>)

dsv4_sources(capi capi_sources)
list(FILTER capi_sources EXCLUDE REGEX "_test\\.cc$")
add_library(dsv4_kernels SHARED ${capi_sources})
target_include_directories(dsv4_kernels PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                           PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(dsv4_kernels PRIVATE DSV4_VERSION="${PROJECT_VERSION}")
# As files: their own dependencies name the static libgomp.
foreach(archive ${archives})
  add_dependencies(dsv4_kernels ${archive})
  list(APPEND files $<TARGET_FILE:${archive}>)
endforeach()
set(version_script ${CMAKE_SOURCE_DIR}/cmake/kernel_library.map)
# In a CPU build Highway chooses instructions at run time; a CUDA build compiles for one target and needs no library.
target_link_libraries(dsv4_kernels PRIVATE ${files} $<$<NOT:$<BOOL:${DSV4_CUDA}>>:dsv4_hwy> dsv4_fmt dsv4_flags gomp)
target_link_options(dsv4_kernels PRIVATE -Wl,--version-script=${version_script} -Wl,--no-undefined)
set_target_properties(dsv4_kernels PROPERTIES LINK_DEPENDS "${version_script};${files}"
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
# cmake --install build/cuda --component kernels --prefix DIR
if(DSV4_CUDA OR DSV4_PACKAGES)
  set_target_properties(dsv4_kernels PROPERTIES EXPORT_NAME kernels)
  install(TARGETS dsv4_kernels EXPORT dsv4 LIBRARY DESTINATION lib COMPONENT kernels INCLUDES DESTINATION include)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ DESTINATION include COMPONENT kernels)
endif()
