# dsv4/server/page.html as a string in dsv4_server: build/PRESET/page_text.cc.

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/dsv4/server/page.html)
file(READ ${CMAKE_SOURCE_DIR}/dsv4/server/page.html DSV4_WEB_PAGE)
configure_file(${CMAKE_SOURCE_DIR}/cmake/page_text.cc.in ${CMAKE_BINARY_DIR}/page_text.cc @ONLY)
target_sources(dsv4_server PRIVATE ${CMAKE_BINARY_DIR}/page_text.cc)
