# Runs in CPack when the files of a package lie in its folder: the documents that Debian's policy wants; the program and the
# C library of the CUDA build DSV4_CUDA_BUILD, where release.sh has one; then one date for all files, SOURCE_DATE_EPOCH.

set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
set(source ${CMAKE_CURRENT_LIST_DIR}/../..)
execute_process(COMMAND ${source}/tools/release/debian_documents.py ${CPACK_PACKAGE_NAME} ${root}/usr/share/doc
                COMMAND_ERROR_IS_FATAL ANY)
if(CPACK_PACKAGE_NAME STREQUAL "dsv4-cuda")
  execute_process(COMMAND strip -o ${root}/usr/bin/dsv4 $ENV{DSV4_CUDA_BUILD}/bin/dsv4 COMMAND_ERROR_IS_FATAL ANY)
  # The CUDA program is linked so that it needs a driver only (docs/adr/0015).
  file(WRITE ${root}/usr/share/lintian/overrides/dsv4-cuda "dsv4-cuda: embedded-library ncurses *\n")
elseif(CPACK_PACKAGE_NAME STREQUAL "libdsv4-dev" AND NOT "$ENV{DSV4_CUDA_BUILD}" STREQUAL "")
  execute_process(COMMAND strip -o ${root}/usr/lib/libdsv4_kernels.so $ENV{DSV4_CUDA_BUILD}/lib/libdsv4_kernels.so
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(COMMAND find ${root} -exec touch --no-dereference "--date=@$ENV{SOURCE_DATE_EPOCH}" {} +
                COMMAND_ERROR_IS_FATAL ANY)
