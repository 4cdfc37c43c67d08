# What the packages of a release hold beside the program (tools/release.sh, docs/adr/0029): man pages, the C library with
# its CMake and pkg-config files, the systemd unit; and one CPack configuration for each Debian package.
#
#   components   program (apps/CMakeLists.txt), kernels, service

set(DSV4_MAINTAINER "dsv4 maintainers <maintainers@users.noreply.a-seed-c7a2fea8.example>")
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)

find_program(HELP2MAN help2man REQUIRED)
set(man_folder ${CMAKE_BINARY_DIR}/man)
add_custom_target(dsv4_man ALL
  COMMAND ${CMAKE_SOURCE_DIR}/tools/release/man.sh $<TARGET_FILE:dsv4> ${man_folder}/man1
  DEPENDS dsv4 VERBATIM)
install(DIRECTORY ${man_folder}/ DESTINATION share/man)

install(EXPORT dsv4 NAMESPACE dsv4:: FILE dsv4Config.cmake DESTINATION lib/cmake/dsv4 COMPONENT kernels)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dsv4ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dsv4ConfigVersion.cmake DESTINATION lib/cmake/dsv4 COMPONENT kernels)
configure_file(packaging/dsv4-kernels.pc.in ${CMAKE_BINARY_DIR}/dsv4-kernels.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dsv4-kernels.pc DESTINATION lib/pkgconfig COMPONENT kernels)

# The unit of docs/ names the place of `cmake --install`. Only packages have it: its places are fixed.
file(READ docs/dsv4.service unit)
string(REPLACE /usr/local/bin /usr/bin unit "${unit}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/dsv4.service CONTENT "${unit}" @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dsv4.service DESTINATION /usr/lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
install(FILES packaging/dsv4.default DESTINATION /etc/default RENAME dsv4 COMPONENT service EXCLUDE_FROM_ALL)

# dsv4_debian_package(NAME DESCRIPTION COMPONENTS ...): the file CPack-NAME.cmake of the build folder.
function(dsv4_debian_package name description)
  set(quads)
  foreach(component ${ARGN})
    list(APPEND quads "${CMAKE_BINARY_DIR};dsv4;${component};/")
  endforeach()
  set(components "${ARGN}")
  configure_file(packaging/debian/cpack.cmake.in ${CMAKE_BINARY_DIR}/CPack-${name}.cmake @ONLY)
endfunction()
set(recommends)
if(TARGET dsv4_curl)
  set(recommends "libcurl4, libzmq5")  # loaded when something is fetched, so that dpkg-shlibdeps does not see it
endif()
set(synopsis "inference engine for DeepSeek-V4")
dsv4_debian_package(dsv4 "${synopsis}, on the CPU" program service)
dsv4_debian_package(dsv4-cuda "${synopsis}, on the CPU and one NVIDIA GPU" program service)
dsv4_debian_package(libdsv4-dev "kernels of dsv4 as a C library" kernels)
