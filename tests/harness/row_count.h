// Which rows a test program has put to the test. The counts are printed at its end, and on a
// machine with a GPU a row that the GPU could run and that accepted no case fails the program: a
// row that nobody ran is not tested, whatever the other rows said.
//
// Only whole runs are held to that: not those with --gtest_filter, GTEST_FILTER or shards.

#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/ops/op.h"
#include "tests/harness/gpu.h"

namespace dsv4::test {

struct RowTally {
  const void* row = nullptr;  // tables of one program may have rows of the same name
  std::string name;
  Arch arch = Arch::kCpu;
  int accepted = 0, rejected = 0;
  std::string reason{};  // of the last rejection
};

// A line for every row that no case reached though `gpu` has its architecture; those in `elsewhere`
// may be missing.
std::string untested_rows(const std::vector<RowTally>& rows, ComputeCapability gpu,
                          const std::set<std::string, std::less<>>& elsewhere);

// At namespace scope: these rows want cases that another test program has.
struct TestedElsewhere {
  TestedElsewhere(std::initializer_list<std::string_view> rows);
};

void count_row(const void* row, std::string_view name, Arch arch, const char* rejected);

// One case was offered to the row; `rejected` is what it answered, null when it took it.
template <class Args>
void count_row(const Impl<Args>& row, const char* rejected) {
  count_row(&row, row.name, row.arch, rejected);
}

}  // namespace dsv4::test
