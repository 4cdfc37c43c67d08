// What the C99 tests of the C interfaces share: checks that are counted, and one for refusals.

#pragma once

#include <stdio.h>
#include <string.h>

#include "dsv4_kernels.h"

static int failures = 0;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                    \
    }                                                                \
  } while (0)

// A call ended with this status, and its line has this part.
static inline void says(int status, int want, const char* part) {
  if (status == want && strstr(dsv4_last_error(), part) != NULL) return;
  printf("status %d (want %d), '%s' does not hold '%s'\n", status, want, dsv4_last_error(), part);
  ++failures;
}

// The last line of main().
static inline int finish(void) {
  printf("%d failures\n", failures);
  return failures != 0;
}
