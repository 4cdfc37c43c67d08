// What every op has in common: a context to run in, a table of implementations, and one dispatch
// point.
//
//   extern const Op<RmsNormArgs> rms_norm;            // in the op's header: its contract
//   rms_norm(context, {.x = x, .weight = w, .out = y, .eps = eps});
//
// The table has one entry per implementation, in order of preference. Dispatch, `dsv4 inspect ops`,
// every op test and every benchmark walk the same table, so a new implementation is tested,
// measured and listed for free. A call checks the arguments, chooses the first implementation that
// accepts them, and runs it, or hands it to the observer of the context. An implementation that
// accepts nothing that an earlier one rejects runs only where a context names it: kernels that are
// not measured yet stand there.

#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dsv4/tensor/dtype.h"

namespace dsv4 {

// kOfficial reproduces every rounding point of docs/spec/dsv4.md 13.1; kExact keeps f32 and
// quantizes nothing (docs/adr/0010-two-numerics-modes.md). The storage dtype of a tensor decides
// the rounding of what is stored in it; the mode decides what happens inside an op.
enum class Numerics : uint8_t { kOfficial, kExact };

enum class Arch : uint8_t { kCpu, kCuda, kSm90 };  // kCuda: runs on every CUDA device of sm_80 on

const char* name(Numerics numerics);
const char* name(Arch arch);

class Device;
class Observer;
class Scratch;

// An implementation that a context tries before the others of the op's table (--impl).
struct ImplChoice {
  std::string_view op, impl;
};

struct Context {
  Numerics numerics = Numerics::kOfficial;
  bool need_batch_invariant = false;  // --deterministic
  std::string_view force_impl{};      // tests and benchmarks pin one implementation of the table
  // Each is taken for the calls that it accepts; other calls choose by the order of the table.
  std::span<const ImplChoice> choices{};
  // Null: tensors are in host memory and CPU implementations run. Otherwise tensors are in memory
  // that this device reads, and device implementations enqueue work on its stream and return; they
  // cannot read tensor contents on the host, so contents that a CPU implementation would refuse are
  // the caller's responsibility.
  Device* device = nullptr;
  Observer* observer = nullptr;  // sees every call; null: calls run
  // Where `parts` implementations take temporaries in host memory; a device has its own.
  Scratch* workspace = nullptr;
};

// The device's workspace, or that of the context on the host. Throws kInvalidArgument when there is
// neither. Take inside a Scratch::Scope.
Scratch& workspace(const Context& context);

// What activations inside an op are stored as: BF16 under official numerics, F32 under exact.
inline DType activation_dtype(const Context& context) {
  return context.numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
}

// Bytes that must move and flops that must run: the floor of a call.
struct Cost {
  double bytes = 0, flops = 0;
  double weight_bytes = 0;  // of `bytes`: weights
  double cache_bytes = 0;   // of `bytes`: rows of the cache that are read

  Cost& operator+=(const Cost& more) {
    bytes += more.bytes, flops += more.flops;
    weight_bytes += more.weight_bytes, cache_bytes += more.cache_bytes;
    return *this;
  }
};

// Host memory that a CPU implementation takes from the system for a call, at most.
struct HostBytes {
  int64_t shared = 0;      // once
  int64_t per_thread = 0;  // for each thread
};

// What dispatch needs to know about an implementation besides its own conditions.
struct ImplInfo {
  std::string_view name;
  Arch arch;
  // A token's bits do not depend on its neighbors; the harness proves it. Of implementations that
  // call other ops: where the context needs it.
  bool batch_invariant;

  // Made of calls of other ops, which go through the same context: an observer sees this call
  // first, and the calls inside it when it calls run().
  constexpr bool parts() const { return name == "parts"; }
};

// The largest relative error of one operand where an implementation that feeds tensor cores rounds
// operands first: a number, or a function of the arguments. 0: products of the operands as they
// are, in f32.
template <class Args>
class OperandRounding {
 public:
  constexpr OperandRounding(double always = 0) : always_(always) {}
  template <std::convertible_to<double (*)(const Args&)> Of>
  constexpr OperandRounding(Of of) : of_(of) {}

  double operator()(const Args& args) const { return of_ != nullptr ? of_(args) : always_; }

 private:
  double always_ = 0;
  double (*of_)(const Args&) = nullptr;
};

template <class Args>
struct Impl : ImplInfo {
  const char* (*reject)(const Context&, const Args&);  // nullptr: can run; else the reason
  void (*run)(const Context&, const Args&);
  OperandRounding<Args> operand_rounding = {};
  HostBytes (*host_bytes)(const Args&) = nullptr;  // null: a few rows at most
};

template <class Args>
using Table = std::span<const Impl<Args>>;

// Declares an implementation in the namespace of its op, above the table that names it:
//
//   namespace dsv4::norm_kernel { DSV4_IMPL(RmsNormArgs, cuda) }
//
// The implementation defines both functions there, in its file or folder of the same name, or only
// run() where the table says accept_all.
#define DSV4_IMPL(Args, impl)                                                    \
  namespace impl {                                                               \
  [[maybe_unused]] const char* reject(const Context& context, const Args& args); \
  void run(const Context& context, const Args& args);                            \
  }

// A reject function for implementations that run whatever check() lets through.
template <class Args>
const char* accept_all(const Context&, const Args&) {
  return nullptr;
}

// A reject function for implementations that store values in one place (tensor/tensor.h).
template <class Args>
const char* reject_mirrors(const Context&, const Args& args) {
  return args.mirrors.empty() ? nullptr : "values that other ranks have too";
}

template <class Args>
struct Op {
  std::string_view name;
  Table<Args> impls;
  void (*check)(const Args&);  // throws Error with the values when the arguments do not fit
  Cost (*cost)(const Args&);

  void operator()(const Context& context, const std::type_identity_t<Args>& args) const;
};

// Why an implementation does not take a call.
struct Refusal {
  std::string_view impl;
  const char* reason;
};

// One call, with the types of its op erased.
class OpCall {
 public:
  virtual std::string_view op() const = 0;
  virtual const ImplInfo& impl() const = 0;
  virtual const Context& context() const = 0;
  virtual Cost cost() const = 0;
  virtual int64_t workspace() const = 0;  // bytes of a device's workspace
  virtual HostBytes host_bytes() const = 0;
  // Why the implementations that the table prefers to impl() refused, if they can read the memory.
  virtual std::vector<Refusal> refusals() const = 0;
  virtual void run() const = 0;

  // The arguments if this is a call of `op`, else null.
  template <class Args>
  const Args* args_of(const Op<Args>& op) const {
    return &op == id() ? static_cast<const Args*>(args()) : nullptr;
  }

 protected:
  ~OpCall() = default;

 private:
  virtual const void* id() const = 0;
  virtual const void* args() const = 0;
};

// Sees every call that is made with its context, in order, and decides whether it runs. A memory
// planner runs nothing but `parts`; a profiler runs the call between two events; an oracle check
// compares what the call wrote.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void observe(const OpCall& call) = 0;
};

// Whether implementations of this architecture work in the memory of the context.
inline bool reaches(Arch arch, const Context& context) {
  return (arch == Arch::kCpu) == (context.device == nullptr);
}

// Why the context cannot use an implementation, whatever the arguments are; null if it can.
const char* refusal(const Context& context, const ImplInfo& impl);

// Throws kUnsupported with one "implementation: reason" for every entry of the table.
[[noreturn]] void fail_no_impl(std::string_view op, std::span<const ImplInfo* const> impls,
                               std::span<const char* const> reasons);

// Null if the implementation takes the call in this context.
template <class Args>
const char* reason_against(const Impl<Args>& impl, const Context& context, const Args& args) {
  const char* why = refusal(context, impl);
  return why != nullptr ? why : impl.reject(context, args);
}

[[noreturn]] void fail_unknown_impl(std::string_view op, std::string_view impl);

// The implementation that the context chose, if it accepts the call, else the first that does.
template <class Args>
const Impl<Args>& choose(const Op<Args>& op, const Context& context,
                         const std::type_identity_t<Args>& args) {
  const auto reason = [&](const Impl<Args>& impl) { return reason_against(impl, context, args); };
  for (const ImplChoice& choice : context.choices) {
    if (choice.op != op.name) continue;
    for (const Impl<Args>& impl : op.impls)
      if (impl.name == choice.impl && reason(impl) == nullptr) return impl;
  }
  for (const Impl<Args>& impl : op.impls)
    if (reason(impl) == nullptr) return impl;
  // Reasons are collected only now: a call that finds its implementation allocates nothing.
  constexpr size_t kMaxImpls = 16;
  const ImplInfo* infos[kMaxImpls];
  const char* reasons[kMaxImpls];
  const size_t count = op.impls.size() < kMaxImpls ? op.impls.size() : kMaxImpls;
  for (size_t i = 0; i < count; ++i) infos[i] = &op.impls[i], reasons[i] = reason(op.impls[i]);
  fail_no_impl(op.name, {infos, count}, {reasons, count});
}

// Whether an implementation takes the call.
template <class Args>
bool accepts(const Op<Args>& op, const Context& context, const std::type_identity_t<Args>& args) {
  for (const Impl<Args>& impl : op.impls)
    if (reason_against(impl, context, args) == nullptr) return true;
  return false;
}

// Bytes that `run` takes from the device's workspace: counted in a dry run of it, which launches
// nothing and reads no tensor (Device::dry_run). 0 without a device.
int64_t dry_run_bytes(const Context& context, void (*run)(const Context&, const void* call),
                      const void* call);

// A forced implementation is one of the outer op: the ops that its `parts` call choose freely.
template <class Args>
void run(const Impl<Args>& impl, const Context& context, const Args& args) {
  if (!impl.parts()) return impl.run(context, args);
  Context inner = context;
  inner.force_impl = {};
  impl.run(inner, args);
}

// Bytes of device workspace that a call of this implementation takes; the harness runs it with
// exactly these.
template <class Args>
int64_t workspace_bytes(const Impl<Args>& impl, const Context& context, const Args& args) {
  struct Call {
    const Impl<Args>& impl;
    const Args& args;
  };
  const Call call{impl, args};
  const auto run = [](const Context& dry, const void* erased) {
    const auto& [chosen, its_args] = *static_cast<const Call*>(erased);
    dsv4::run(chosen, dry, its_args);
  };
  return dry_run_bytes(context, run, &call);
}

// Workspace of the implementation that a call would choose.
template <class Args>
int64_t workspace_bytes(const Op<Args>& op, const Context& context,
                        const std::type_identity_t<Args>& args) {
  op.check(args);
  return workspace_bytes(choose(op, context, args), context, args);
}

// The implementation of this name in the table of another op, for an implementation that is made of
// its kernels. Throws when there is none.
template <class Args>
const Impl<Args>& impl_of(const Op<Args>& op, std::string_view name) {
  for (const Impl<Args>& impl : op.impls)
    if (impl.name == name) return impl;
  fail_unknown_impl(op.name, name);
}

template <class Args>
class OpCallOf final : public OpCall {
 public:
  OpCallOf(const Op<Args>& op, const Impl<Args>& impl, const Context& context, const Args& args)
      : op_(op), impl_(impl), context_(context), args_(args) {}

  std::string_view op() const override { return op_.name; }
  const ImplInfo& impl() const override { return impl_; }
  const Context& context() const override { return context_; }
  Cost cost() const override { return op_.cost(args_); }
  int64_t workspace() const override { return workspace_bytes(impl_, context_, args_); }
  HostBytes host_bytes() const override {
    return impl_.host_bytes != nullptr ? impl_.host_bytes(args_) : HostBytes{};
  }
  std::vector<Refusal> refusals() const override {
    std::vector<Refusal> list;
    for (const Impl<Args>& impl : op_.impls) {
      if (&impl == &impl_) break;
      if (reaches(impl.arch, context_))
        list.push_back({impl.name, reason_against(impl, context_, args_)});
    }
    return list;
  }
  void run() const override { dsv4::run(impl_, context_, args_); }

 private:
  const void* id() const override { return &op_; }
  const void* args() const override { return &args_; }

  const Op<Args>& op_;
  const Impl<Args>& impl_;
  const Context& context_;
  const Args& args_;
};

// The one dispatch point.
template <class Args>
void call(const Op<Args>& op, const Context& context, const std::type_identity_t<Args>& args) {
  op.check(args);
  const Impl<Args>& impl = choose(op, context, args);
  if (context.observer != nullptr) {
    context.observer->observe(OpCallOf<Args>(op, impl, context, args));
  } else {
    run(impl, context, args);
  }
}

template <class Args>
void Op<Args>::operator()(const Context& context, const std::type_identity_t<Args>& args) const {
  call(*this, context, args);
}

}  // namespace dsv4
