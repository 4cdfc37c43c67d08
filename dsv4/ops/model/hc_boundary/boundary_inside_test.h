// What a block that takes a boundary must do: as hc_boundary and then the block, bit by bit.

#pragma once

#include <string>

#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "tests/harness/op_check.h"

namespace dsv4::test {

// Every implementation of a block gives the bits of hc_boundary and then the block, and what
// check_op() wants but for the oracle, whose x may differ by a bf16 step.
template <class Args>
void check_boundary_inside(Table<Args> table, const Context& base, Arena& arena,
                           const OpCase<Args>& test) {
  check_op(table, base, arena, test);
  Scratch host_workspace;
  for (const Impl<Args>& impl : table) {
    Context context = base;
    if (impl.arch != Arch::kCpu) context.device = gpu();
    if (context.device == nullptr) context.workspace = &host_workspace;
    if (!reaches(impl.arch, context) || impl.reject(context, test.args) != nullptr) continue;
    SCOPED_TRACE(test.name + " by " + std::string(impl.name));
    const auto written = [&](const auto& call) {
      arena.prepare();
      call();
      if (context.device != nullptr) wait(*context.device);
      return arena.written();
    };
    const auto inside = written([&] { impl.run(context, test.args); });
    const auto before = written([&] {
      hc_boundary(context, test.args.boundary);
      Args block = test.args;
      block.boundary = {};
      impl.run(context, block);
    });
    EXPECT_TRUE(inside == before) << "other bits than hc_boundary and then the block";
  }
}

}  // namespace dsv4::test
