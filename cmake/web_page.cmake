# The chat page as part of the program: esbuild bundles dsv4/server/page/ with the libraries that Debian packages (docs/adr/0026),
# gzip compresses what is text, and the assembler embeds the files of build/PRESET/page (page_files.cc.in). Nothing is
# downloaded. The licenses of the libraries are one of the files.

find_program(ESBUILD esbuild REQUIRED)
find_program(GZIP gzip REQUIRED)
find_path(NODE_LIBRARIES markdown-it/lib/index.js PATHS /usr/share/nodejs REQUIRED)
find_path(KATEX katex.mjs PATHS /usr/share/javascript/katex REQUIRED)
find_path(KATEX_FONTS KaTeX_Main-Regular.woff2 PATHS ${KATEX}/fonts REQUIRED)  # of the package fonts-katex
set(page_source ${CMAKE_SOURCE_DIR}/dsv4/server/page)
set(page_out ${CMAKE_BINARY_DIR}/page)
file(GLOB page_modules CONFIGURE_DEPENDS ${page_source}/*.js)
file(GLOB page_fonts CONFIGURE_DEPENDS ${KATEX_FONTS}/*.woff2)
cmake_path(GET KATEX PARENT_PATH katex_parent)  # the modules of the page name it "katex/katex.mjs"
set(page_libraries ${NODE_LIBRARIES}/markdown-it/package.json ${NODE_LIBRARIES}/dompurify/package.json
                   ${NODE_LIBRARIES}/highlight.js/package.json ${KATEX}/katex.mjs)

# page_file(NAME TYPE FILE [GZIP] [COMMAND ARGUMENTS ...]): the embedded file NAME, which COMMAND, where there is one, makes as FILE.
set(page_embedded)
set(page_symbols)
set(page_rows)
set(page_incbin)
function(page_file name type file)
  cmake_parse_arguments(PAGE "GZIP" "" "COMMAND;DEPENDS" ${ARGN})
  if(PAGE_COMMAND)
    add_custom_command(OUTPUT ${file} COMMAND ${PAGE_COMMAND} DEPENDS ${PAGE_DEPENDS} VERBATIM COMMENT "page: ${name}")
  endif()
  set(compressed false)
  if(PAGE_GZIP)
    set(compressed true)
    cmake_path(GET name FILENAME base)
    add_custom_command(OUTPUT ${page_out}/gz/${base}.gz COMMAND ${GZIP} -9nc ${file} > ${page_out}/gz/${base}.gz
                       DEPENDS ${file} COMMENT "")
    set(file ${page_out}/gz/${base}.gz)
  endif()
  list(LENGTH page_embedded index)
  set(symbol dsv4_page_${index})
  set(page_embedded ${page_embedded} ${file} PARENT_SCOPE)
  string(APPEND page_incbin "${symbol}: .incbin \"${file}\"\n${symbol}_end: .byte 0\n")
  set(page_incbin "${page_incbin}" PARENT_SCOPE)
  string(APPEND page_symbols "extern const char ${symbol}[], ${symbol}_end[];\n")
  set(page_symbols "${page_symbols}" PARENT_SCOPE)
  string(APPEND page_rows "      {\"${name}\", \"${type}\", {${symbol}, ${symbol}_end}, ${compressed}},\n")
  set(page_rows "${page_rows}" PARENT_SCOPE)
endfunction()

set(bundle ${CMAKE_COMMAND} -E env NODE_PATH=${NODE_LIBRARIES}:${katex_parent} ${ESBUILD} --bundle --minify --format=esm
           --charset=utf8 --log-level=warning --legal-comments=none)
file(MAKE_DIRECTORY ${page_out}/gz)
page_file(page.html "text/html; charset=utf-8" ${page_source}/page.html GZIP)
page_file(icon.svg image/svg+xml ${page_source}/icon.svg GZIP)
page_file(page.css "text/css; charset=utf-8" ${page_out}/page.css GZIP DEPENDS ${page_source}/page.css
          COMMAND ${ESBUILD} --minify --charset=utf8 --log-level=warning ${page_source}/page.css --outfile=${page_out}/page.css)
# Debian 12's dompurify 2.4.1+deb12u1 reads an undeclared variable `shadowNode` where upstream has `if (body && FORCE_BODY)`, and
# so throws at every call. With this value the condition is false, as upstream's is; a package without the fault is not changed.
list(APPEND bundle "--define:shadowNode={\"__depth\":0}")
set(external_app --external:./math.js --external:./code.js)  # app.js loads them when they are needed
foreach(entry app math code)
  page_file(${entry}.js "text/javascript; charset=utf-8" ${page_out}/${entry}.js GZIP
            DEPENDS ${page_modules} ${page_libraries}
            COMMAND ${bundle} ${page_source}/${entry}.js --outfile=${page_out}/${entry}.js
                    --alias:punycode=${page_source}/punycode.js ${external_${entry}})
endforeach()
page_file(katex.css "text/css; charset=utf-8" ${KATEX}/katex.min.css GZIP)
foreach(font ${page_fonts})
  cmake_path(GET font FILENAME name)
  page_file(fonts/${name} font/woff2 ${font})
endforeach()
set(licenses)
foreach(package node-markdown-it node-dompurify libjs-katex node-highlight.js)
  list(APPEND licenses /usr/share/doc/${package}/copyright)
endforeach()
list(APPEND licenses ${CMAKE_SOURCE_DIR}/LICENSE)  # the text of Apache-2.0, which Debian's file of dompurify only names
page_file(licenses.txt "text/plain; charset=utf-8" ${page_out}/licenses.txt GZIP DEPENDS ${licenses}
          COMMAND ${CMAKE_COMMAND} -E cat ${licenses} > ${page_out}/licenses.txt)

configure_file(${CMAKE_SOURCE_DIR}/cmake/page_files.cc.in ${CMAKE_BINARY_DIR}/page_files.cc @ONLY)
set_source_files_properties(${CMAKE_BINARY_DIR}/page_files.cc PROPERTIES OBJECT_DEPENDS "${page_embedded}"
                            SKIP_UNITY_BUILD_INCLUSION ON)
target_sources(dsv4_server PRIVATE ${CMAKE_BINARY_DIR}/page_files.cc)
