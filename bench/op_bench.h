// Benchmarks of ops: one per implementation and shape, named op/shape/implementation.
//
// One X_bench.cc serves two programs: dsv4_bench_cpu times the CPU implementations under Google
// Benchmark, dsv4_bench_cuda the CUDA implementations in graphs. Each defines memory() and
// token_counts() differently.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::bench {

// Host memory, or memory that host and GPU both address.
Memory& memory();
// Sizes of one token, a batch of requests, a chunk of a prompt.
std::vector<int64_t> token_counts();
// Whether to include shapes of full batches of large models, which are too large for a CPU.
bool full_size();

class Tensor : public Buffer {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<int64_t> shape) : Buffer(dtype, shape, memory()) {}
};

// Tensors of a case, in memory(). It has the functions of test::Arena that builders of random
// arguments call (X_case.h), which are templates over the two.
class Arena {
 public:
  TensorView input(DType dtype, std::initializer_list<int64_t> shape) {
    return tensors_.emplace_back(dtype, shape);
  }
  TensorView output(DType dtype, std::initializer_list<int64_t> shape) {
    return input(dtype, shape);
  }
  TensorView inout(DType dtype, std::initializer_list<int64_t> shape) {
    return input(dtype, shape);
  }
  void keep_order(const TensorView&) {}  // nothing reverses the contents

 private:
  std::deque<Tensor> tensors_;
};

// Draws of the builders of random arguments, which fill tensors by all threads.
class Random : public Rng {
 public:
  using Rng::Rng;
};
// Uniform values of this mean and variance sigma^2, rounded to the dtype (F32, BF16): what a
// builder's call of test::fill_normal() becomes when it draws from a Random.
void fill_normal(const TensorView& view, Random& random, double sigma = 1, double mean = 0);

// Independent values, uniform with variance scale^2; F32 or BF16.
void fill(const Tensor& tensor, float scale = 1);
// first, first + 1, ...; I32.
void fill_ascending(const Tensor& tensor, int first = 0);

// One implementation with its tensors.
class Session {
 public:
  virtual ~Session() = default;
  virtual const char* reject(const Context& context) const = 0;
  virtual void next() = 0;  // switches to other weights for the next call, where the case has them
  virtual void run(const Context& context) = 0;
  virtual Cost cost() const = 0;  // of the next run()
};

struct Entry {
  std::string name;  // op/shape
  std::string_view impl;
  Arch arch;
  std::function<std::unique_ptr<Session>()> open;
};

// All registered benchmarks, in no particular order of ops.
std::vector<Entry>& entries();

// Mean over successive calls: the cost of a call may depend on its weights.
Cost mean_cost(Session& session);

template <class Args, class Owner>
class ImplSession : public Session {
 public:
  ImplSession(const Op<Args>& op, const Impl<Args>& impl, std::shared_ptr<Owner> owner)
      : op_(op), impl_(impl), owner_(std::move(owner)) {}
  const char* reject(const Context& context) const override {
    return impl_.reject(with_numerics(context), owner_->args);
  }
  void next() override {
    if constexpr (requires(Owner & owner) { owner.next(); }) owner_->next();
  }
  void run(const Context& context) override { impl_.run(with_numerics(context), owner_->args); }
  Cost cost() const override { return op_.cost(owner_->args); }

 private:
  // A case may have the member `numerics`.
  Context with_numerics(Context context) const {
    if constexpr (requires(Owner & owner) { owner.numerics; }) context.numerics = owner_->numerics;
    return context;
  }

  const Op<Args>& op_;
  const Impl<Args>& impl_;
  std::shared_ptr<Owner> owner_;
};

// `make()` returns a shared pointer to an object that owns the tensors and has the member `args`
// and, where weights are read, a method next() that switches to others. It is called when the
// benchmark starts, so that unselected shapes cost nothing.
//
// Implementations whose Arch is below `least` (portable ones, for shapes of a GPU) are left out.
template <class Args, class Make>
void register_impls(const std::string& name, const Op<Args>& op, const Make& make,
                    Arch least = Arch::kCpu) {
  using Owner = typename decltype(make())::element_type;
  for (const Impl<Args>& impl : op.impls) {
    if (impl.arch < least) continue;
    entries().push_back({name, impl.name, impl.arch, [&op, &impl, make] {
                           return std::make_unique<ImplSession<Args, Owner>>(op, impl, make());
                         }});
  }
}

// A call whose weights do not change.
template <class Args>
struct Case {
  Arena arena;
  Args args;
};

// build(Arena&, Random&) returns the arguments.
template <class Args, class Build>
void register_case(const std::string& name, const Op<Args>& op, const Build& build,
                   Arch least = Arch::kCpu) {
  const auto make = [build] {
    auto made = std::make_shared<Case<Args>>();
    Random random(1);
    made->args = build(made->arena, random);
    return made;
  };
  register_impls(name, op, make, least);
}

}  // namespace dsv4::bench
