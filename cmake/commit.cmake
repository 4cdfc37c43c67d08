# cmake -DSOURCE=folder -DOUT=file -P commit.cmake: writes `#define DSV4_COMMIT "0132202"`, with a + after changes that
# are not committed, and empty outside a git clone. The file is touched only when it changes.

execute_process(COMMAND git -C ${SOURCE} rev-parse --short=10 HEAD OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
if(commit AND changes)
  string(APPEND commit "+")
endif()
set(text "#define DSV4_COMMIT \"${commit}\"\n")
set(old)
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUT} "${text}")
endif()
