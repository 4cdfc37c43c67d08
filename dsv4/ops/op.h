// What every op has in common: a context to run in, and a table of implementations ("rows").
//
// One row per implementation, in order of preference. Dispatch, `dsv4 inspect ops`, every op test
// and every benchmark walk the same table, so a new row is tested, measured and listed for free.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/base/error.h"

namespace dsv4 {

// kOfficial reproduces every rounding point of spec dsv4.md 13.1; kExact keeps f32 and quantises
// nothing (architecture.md decision 10). The storage dtype of a tensor decides the rounding of what
// is stored in it; the mode decides what happens inside an op.
enum class Numerics : uint8_t { kOfficial, kExact };

enum class Arch : uint8_t { kCpu, kCuda, kSm90 };  // kCuda: a row for every CUDA device

const char* name(Numerics numerics);
const char* name(Arch arch);

class Device;

struct Context {
  Numerics numerics = Numerics::kOfficial;
  bool need_batch_invariant = false;  // --deterministic
  std::string_view force_row{};       // tests and benchmarks pin one row of the table
  // Null: tensors are in host memory and CPU rows run. Otherwise tensors are in memory that this
  // device reads, and device rows enqueue work on its stream and return; they cannot look into
  // tensors, so contents that a CPU row would refuse are the caller's promise.
  Device* device = nullptr;
};

template <class Args>
struct Row {
  std::string_view name;
  Arch arch;
  bool batch_invariant;  // a token's bits do not depend on its neighbours; the harness proves it
  const char* (*reject)(const Context&, const Args&);  // nullptr: can run; else the reason
  void (*run)(const Context&, const Args&);
  // Rows that feed tensor cores round operands first: the largest relative error of one operand.
  // 0: products of the operands as they are, in f32.
  double operand_rounding = 0;
  // Bytes that run() takes from the device's workspace at most: callers who bring their own ask
  // (capi/). nullptr: none, or an op that no such caller has.
  int64_t (*workspace)(const Context&, const Args&) = nullptr;
};

template <class Args>
using Table = std::span<const Row<Args>>;

template <class Args>
const char* accept_all(const Context&, const Args&) {
  return nullptr;
}

// Whether rows of this architecture work in the memory of the context.
inline bool reaches(Arch arch, const Context& context) {
  return (arch == Arch::kCpu) == (context.device == nullptr);
}

// First row that fits. Throws kUnsupported with "row: reason" of every row.
template <class Args>
const Row<Args>& choose(Table<Args> table, const Context& context, const Args& args) {
  std::string reasons;
  for (const Row<Args>& row : table) {
    const char* reason = nullptr;
    if (!reaches(row.arch, context)) {
      reason = row.arch == Arch::kCpu ? "tensors are on a device" : "tensors are in host memory";
    } else {
      reason = row.reject(context, args);
    }
    if (!context.force_row.empty() && row.name != context.force_row) reason = "not the forced row";
    if (context.need_batch_invariant && !row.batch_invariant) reason = "not batch invariant";
    if (reason == nullptr) return row;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", row.name, reason);
  }
  fail(ErrorCode::kUnsupported, "no implementation fits ({})", reasons);
}

// Bytes that must move and flops that must run: the floor of a call.
struct Cost {
  double bytes = 0, flops = 0;
};

}  // namespace dsv4
