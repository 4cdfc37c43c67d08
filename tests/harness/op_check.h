// check_op: what every implementation of every op goes through.
//
// For each implementation of the table that accepts the case:
//
//   always     outputs poisoned, run, inputs and canaries unchanged, output compared with the fp64
//              oracle; the same with other strides where the contract allows them
//              (OpCase::strided); run again, bits must match; if it claims batch invariance, each
//              token alone (OpCase::one_token), bits must match
//   CPU        on every instruction set of this machine; with another number of threads; after a
//              call with other contents, bits must match; `parts` with a workspace of exactly the
//              bytes that they take, poisoned
//   CUDA       with exactly the workspace that it asked for; captured into a graph and replayed
//              with other contents; launched twice in a row after a kernel that lets it start
//              early and writes its inputs, but for weights, late (programmatic dependent launch)
//
// Without a GPU the line of CUDA is skipped; the last line of the program's output says so.

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
#include "dsv4/tensor/buffer.h"
#include "dsv4/tensor/scratch.h"
#include "tests/harness/arena.h"
#include "tests/harness/compare.h"
#include "tests/harness/gpu.h"
#include "tests/harness/impl_count.h"
#include "tests/harness/strided.h"
#include "tests/harness/targets.h"

namespace dsv4::test {

struct OpOutput {
  const char* name;
  TensorView view;           // contiguous
  std::vector<double> want;  // from the oracle
  Tolerance tolerance;
  // Largest absolute error per unit of Impl::operand_rounding: for a sum of products, the sum of
  // their magnitudes. 0 for ops without such implementations.
  double operand_scale = 0;
  // What is compared instead of `view`, read after the call: the rows of a packed pool.
  std::function<Buffer()> decoded{};
};

template <class Args>
struct OpCase {
  std::string name;
  Args args;
  std::vector<OpOutput> outputs;
  // A call narrowed to token i, writing to the same place; null: the op has no token axis.
  std::function<Args(const Args&, int64_t)> one_token;
  int64_t num_tokens = 0;
  // Called after the call of each token, where that cannot write to the same place.
  std::function<void(int64_t)> after_one_token{};
  // Names the views that the contract allows any strides of, but for the last axis; null: none.
  std::function<void(Args&, StridedCopy&)> strided;
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

// One implementation and one case.
template <class Args>
class ImplCheck {
 public:
  ImplCheck(const Impl<Args>& impl, const Context& context, Arena& arena, const OpCase<Args>& test)
      : impl_(impl), context_(context), arena_(arena), test_(test) {
    if (impl.parts() && context.device == nullptr) context_.workspace = &host_workspace_;
  }

  void on_cpu() {
    for_each_target([&] {
      run(2, whole());
      compare_outputs();
    });
    const Bytes first = run(2, whole());
    EXPECT_TRUE(first == run(1, whole())) << "bits changed with the number of threads";
    with_other_contents([&] { run(2, whole()); });
    EXPECT_TRUE(first == run(2, whole())) << "bits depend on an earlier call";
    check_host_workspace(first);
    check_strides();
    check_tokens_alone();
  }

  void on_gpu() {
    const Bytes first = run(1, whole());
    compare_outputs();
    EXPECT_TRUE(first == run(1, whole())) << "bits changed from run to run";
    check_workspace(first);
    check_replay();
    check_early_launch();
    check_strides();
    check_tokens_alone();
  }

 private:
  using Call = std::function<void()>;
  using Bytes = std::vector<std::byte>;

  Call whole() {
    return [this] { impl_.run(context_, test_.args); };
  }

  Bytes run(int threads, const Call& call) {
    const ThreadCount scope(threads);
    arena_.prepare();
    call();
    return finish();
  }

  Bytes finish() {
    if (context_.device != nullptr) wait(*context_.device);
    arena_.verify();
    return arena_.written();
  }

  void compare_outputs() {
    for (const OpOutput& output : test_.outputs) {
      Tolerance tolerance = output.tolerance;
      const double rounding = impl_.operand_rounding(test_.args);
      tolerance.abs += rounding * output.operand_scale;
      // Outputs that move by half of the operands' rounding: 1 - cosine is half of its square.
      if (output.operand_scale > 0) tolerance.cosine += rounding * rounding / 8;
      const Buffer decoded = output.decoded ? output.decoded() : Buffer();
      EXPECT_EQ(compare(output.decoded ? decoded.view() : output.view, output.want, tolerance), "")
          << output.name;
    }
  }

  void check_tokens_alone() {
    if (!impl_.batch_invariant || !test_.one_token || test_.num_tokens == 0) return;
    Context context = context_;
    // Ops that the implementation calls have implementations that are not batch invariant.
    context.need_batch_invariant = true;
    const Bytes together = run(2, [&] { impl_.run(context, test_.args); });
    const Bytes alone = run(2, [&] {
      for (int64_t i = 0; i < test_.num_tokens; ++i) {
        impl_.run(context, test_.one_token(test_.args, i));
        if (!test_.after_one_token) continue;
        if (context.device != nullptr) wait(*context.device);
        test_.after_one_token(i);
      }
    });
    EXPECT_TRUE(together == alone) << "bits of a token depend on its neighbors";
  }

  // Neither more than the most that earlier calls took, nor what they left there.
  void check_host_workspace(const Bytes& first) {
    if (!impl_.parts()) return;
    const int64_t bytes = host_workspace_.peak_bytes();
    Arena memory;
    TensorView view;
    if (bytes > 0) view = memory.output(DType::kU8, {bytes});
    memory.prepare();
    Scratch workspace = Scratch::borrowing(view);
    Context context = context_;
    context.workspace = &workspace;
    const Bytes guarded = run(2, [&] { impl_.run(context, test_.args); });
    EXPECT_TRUE(first == guarded) << "bits depend on what is in the workspace";
    memory.verify();
  }

  // Other strides may take another code path, so bits may differ; the tolerance is the same.
  void check_strides() {
    if (!test_.strided) return;
    for (const StridePattern& pattern : kStridePatterns) {
      SCOPED_TRACE(pattern.name);
      Args args = test_.args;
      StridedCopy copy(arena_, pattern);
      test_.strided(args, copy);
      if (impl_.reject(context_, args) != nullptr) continue;
      run(2, [&] {
        copy.prepare();
        impl_.run(context_, args);
        if (context_.device != nullptr) wait(*context_.device);
        copy.finish();
      });
      compare_outputs();
    }
  }

  void with_other_contents(const Call& check) {
    arena_.reverse();
    arena_.freeze();
    check();
    arena_.reverse();
    arena_.freeze();
  }

  // Neither more than it asked for, nor what an earlier call left there.
  void check_workspace(const Bytes& first) {
    const int64_t bytes = workspace_bytes(impl_, context_, test_.args);
    Arena memory;
    TensorView workspace;
    if (bytes > 0) workspace = memory.output(DType::kU8, {bytes});
    memory.prepare();
    try {
      const Bytes guarded = run(1, [&] {
        with_workspace(*context_.device, workspace, [&](Device& device) {
          Context context = context_;
          context.device = &device;
          impl_.run(context, test_.args);
        });
      });
      EXPECT_TRUE(first == guarded) << "bits depend on what is in the workspace";
    } catch (const Error& error) {
      ADD_FAILURE() << "it asked for " << bytes << " bytes of workspace: " << error.what();
    }
    memory.verify();
  }

  void check_replay() {
    Bytes replayed;
    with_capture(*context_.device, whole(), [&](const Call& replay) {
      with_other_contents([&] {
        replayed = run(1, replay);
        EXPECT_TRUE(replayed == run(1, whole()))
            << "a replayed graph with other contents gives other bits than a call";
      });
    });
  }

  // Inputs have their old contents when the call is enqueued, and when it starts: it has to wait
  // for the kernel that writes the new ones. The second call reads what the first wrote, if
  // anything.
  void check_early_launch() {
    with_other_contents([&] {
      const Bytes want = run(1, [this] {
        for (int i = 0; i < 2; ++i) whole()(), wait(*context_.device);
      });
      arena_.reverse();
      after_late_writes(*context_.device, arena_.frozen_contents(),
                        [this] { whole()(), whole()(); });
      EXPECT_TRUE(want == finish())
          << "launched early (programmatic dependent launch), two calls in a row give other bits";
    });
  }

  const Impl<Args>& impl_;
  Scratch host_workspace_;
  Context context_;
  Arena& arena_;
  const OpCase<Args>& test_;
};

template <class Args>
void check_op(Table<Args> table, const Context& base, Arena& arena, const OpCase<Args>& test) {
  arena.freeze();
  int accepted = 0;
  for (const Impl<Args>& impl : table) {
    Context context = base;
    if (impl.arch != Arch::kCpu) context.device = gpu();
    if (!reaches(impl.arch, context)) continue;
    const char* rejected = impl.reject(context, test.args);
    count_impl(impl, rejected);
    if (rejected != nullptr) continue;
    ++accepted;
    SCOPED_TRACE(test.name + " by " + std::string(impl.name));
    ImplCheck<Args> check(impl, context, arena, test);
    impl.arch == Arch::kCpu ? check.on_cpu() : check.on_gpu();
  }
  EXPECT_GT(accepted, 0) << test.name << ": no implementation accepted the case";
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
