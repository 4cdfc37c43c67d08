// Runs an emulated implementation several times: the same bits in any order of events.

#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "tests/harness/arena.h"
#include "tests/harness/compare.h"

namespace dsv4::emulator {

// run(i), for i from 0 to `runs`, fills the outputs in `arena`; check() compares them.
template <class Run, class Check>
void check_runs(test::Arena& arena, int runs, const Run& run, const Check& check) {
  arena.freeze();
  std::vector<std::byte> first;
  for (int i = 0; i < runs; ++i) {
    SCOPED_TRACE(fmt::format("run {}", i));
    arena.prepare();
    ASSERT_NO_THROW(run(i));
    arena.verify();
    if (i == 0) first = arena.written();
    EXPECT_TRUE(first == arena.written()) << "the order of events changed bits";
    check();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace dsv4::emulator
