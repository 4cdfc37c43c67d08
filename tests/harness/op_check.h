// check_op: what every row of every op goes through.
//
// For each row of the table that accepts the case: outputs poisoned, run, inputs and canaries
// unchanged, output compared with the fp64 oracle; run again, bits must match. CPU rows run on
// every instruction set of this machine and with another number of threads, CUDA rows where there
// is a GPU. Rows that claim batch invariance run each token alone, bits must match
// (OpCase::one_token).

#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/op.h"
#include "tests/harness/arena.h"
#include "tests/harness/compare.h"
#include "tests/harness/gpu.h"
#include "tests/harness/row_count.h"
#include "tests/harness/targets.h"

namespace dsv4::test {

struct OpOutput {
  const char* name;
  TensorView view;           // contiguous
  std::vector<double> want;  // from the oracle
  Tolerance tolerance;
  // Largest absolute error per unit of Row::operand_rounding: for a sum of products, the sum of
  // their magnitudes. 0 for ops without such rows.
  double operand_scale = 0;
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

// What the rows of a table are put through: one case, any row.
template <class Args>
class ImplCheck {
 public:
  ImplCheck(const Impl<Args>& row, const Context& context, Arena& arena, const OpCase<Args>& test)
      : row_(row), context_(context), arena_(arena), test_(test) {}

  void on_cpu() {
    for_each_target([&] {
      run(2, whole());
      compare_outputs();
    });
    const auto first = run(2, whole());
    EXPECT_TRUE(first == run(1, whole())) << "bits changed with the number of threads";
    check_tokens_alone(first);
  }

  void on_gpu() {
    const auto first = run(1, whole());
    compare_outputs();
    EXPECT_TRUE(first == run(1, whole())) << "bits changed from run to run";
    check_tokens_alone(first);
  }

 private:
  using Call = std::function<void()>;

  Call whole() {
    return [this] { row_.run(context_, test_.args); };
  }

  std::vector<std::byte> run(int threads, const Call& call) {
    const ThreadCount scope(threads);
    arena_.prepare();
    call();
    if (context_.device != nullptr) wait(*context_.device);
    arena_.verify();
    return arena_.written();
  }

  void compare_outputs() {
    for (const OpOutput& output : test_.outputs) {
      Tolerance tolerance = output.tolerance;
      tolerance.abs += row_.operand_rounding * output.operand_scale;
      EXPECT_EQ(compare(output.view, output.want, tolerance), "") << output.name;
    }
  }

  void check_tokens_alone(const std::vector<std::byte>& together) {
    if (!row_.batch_invariant || !test_.one_token || test_.num_tokens == 0) return;
    const auto alone = run(2, [this] {
      for (int64_t i = 0; i < test_.num_tokens; ++i)
        row_.run(context_, test_.one_token(test_.args, i));
    });
    EXPECT_TRUE(together == alone) << "bits of a token depend on its neighbours";
  }

  const Impl<Args>& row_;
  const Context context_;
  Arena& arena_;
  const OpCase<Args>& test_;
};

template <class Args>
void check_op(Table<Args> table, const Context& base, Arena& arena, const OpCase<Args>& test) {
  arena.freeze();
  int accepted = 0;
  for (const Impl<Args>& row : table) {
    Context context = base;
    if (row.arch != Arch::kCpu) context.device = gpu();
    if (!reaches(row.arch, context)) continue;
    const char* rejected = row.reject(context, test.args);
    count_row(row, rejected);
    if (rejected != nullptr) continue;
    ++accepted;
    SCOPED_TRACE(test.name + " row " + std::string(row.name));
    ImplCheck<Args> check(row, context, arena, test);
    row.arch == Arch::kCpu ? check.on_cpu() : check.on_gpu();
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
