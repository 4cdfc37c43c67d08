// check_op: what every row of every op goes through.
//
// For each row of the table that accepts the case: outputs poisoned, run, inputs and canaries
// unchanged, output compared with the fp64 oracle, on every instruction set of this machine; run
// again with another thread count, bits must match. Rows that claim batch invariance run each token
// alone, bits must match (OpCase::one_token).

#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <omp.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/op.h"
#include "tests/harness/arena.h"
#include "tests/harness/compare.h"

namespace dsv4::test {

struct OpOutput {
  const char* name;
  TensorView view;           // contiguous
  std::vector<double> want;  // from the oracle
  Tolerance tolerance;
};

template <class Args>
struct OpCase {
  std::string name;
  Args args;
  std::vector<OpOutput> outputs;
  // The same call narrowed to token i, writing to the same place; null: the op has no token axis.
  std::function<Args(const Args&, int64_t)> one_token;
  int64_t num_tokens = 0;
};

// n threads that share even the smallest region.
class ThreadCount {
 public:
  explicit ThreadCount(int n) : before_(omp_get_max_threads()), threshold_(cpu::sharing_threshold) {
    omp_set_num_threads(n);
    cpu::sharing_threshold = 0;
  }
  ~ThreadCount() {
    omp_set_num_threads(before_);
    cpu::sharing_threshold = threshold_;
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
  int64_t threshold_;
};

// Narrows Highway's dispatch to one instruction set while it lives.
class InstructionSet {
 public:
  explicit InstructionSet(int64_t target) { choose(target); }
  ~InstructionSet() { choose(0); }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);  // 0: all again
    hwy::GetChosenTarget().DeInit();
  }
};

template <class Args>
void check_op(Table<Args> table, const Context& base, Arena& arena, const OpCase<Args>& test) {
  arena.freeze();
  int accepted = 0;
  for (const Row<Args>& row : table) {
    if (row.arch != Arch::kCpu || row.reject(base, test.args) != nullptr) continue;
    ++accepted;
    SCOPED_TRACE(test.name + " row " + std::string(row.name));
    const auto run = [&](int threads, const auto& call) {
      const ThreadCount scope(threads);
      arena.prepare();
      call();
      arena.verify();
      return arena.written();
    };
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const InstructionSet scope(target);
      run(2, [&] { row.run(base, test.args); });
      for (const OpOutput& output : test.outputs) {
        EXPECT_EQ(compare(output.view, output.want, output.tolerance), "")
            << output.name << " on " << hwy::TargetName(target);
      }
    }
    const auto first = run(2, [&] { row.run(base, test.args); });
    const auto again = run(1, [&] { row.run(base, test.args); });
    EXPECT_TRUE(first == again) << "bits changed with the number of threads";
    if (row.batch_invariant && test.one_token && test.num_tokens > 0) {
      const auto alone = run(2, [&] {
        for (int64_t i = 0; i < test.num_tokens; ++i) row.run(base, test.one_token(test.args, i));
      });
      EXPECT_TRUE(first == alone) << "bits of a token depend on its neighbours";
    }
  }
  EXPECT_GT(accepted, 0) << test.name << ": no row accepted the case";
}

// The message of the Error that `call` throws; fails the test when it does not throw.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

}  // namespace dsv4::test
