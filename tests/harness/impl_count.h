// Which implementations a test program has checked. The counts are printed at its end. On a machine
// with a GPU, an implementation that the GPU could run and that accepted no case fails the program:
// it is not tested, whatever the others did.
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

struct ImplTally {
  const void* impl = nullptr;  // tables of one program may use the same name
  std::string name;
  Arch arch = Arch::kCpu;
  int accepted = 0, rejected = 0;
  std::string reason{};  // of the last rejection
};

// A line for every implementation that accepted no case though `gpu` has its architecture; those in
// `elsewhere` may be missing.
std::string untested_impls(const std::vector<ImplTally>& impls, ComputeCapability gpu,
                           const std::set<std::string, std::less<>>& elsewhere);

// At namespace scope: the cases of these implementations are in another test program.
struct TestedElsewhere {
  TestedElsewhere(std::initializer_list<std::string_view> impls);
};

void count_impl(const void* impl, std::string_view name, Arch arch, const char* rejected);

// One case was offered to the implementation; `rejected` is its answer, null when it took it.
template <class Args>
void count_impl(const Impl<Args>& impl, const char* rejected) {
  count_impl(&impl, impl.name, impl.arch, rejected);
}

}  // namespace dsv4::test
