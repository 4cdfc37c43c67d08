#include "dsv4/ops/inspect.h"

#include "op_list.h"  // generated: cmake/module.cmake

namespace dsv4 {
namespace {

// A line goes with the release after the one that renamed the implementation.
struct Renamed {
  std::string_view op, before, now;
};
constexpr Renamed kRenamed[] = {{"linear", "cuda_mma_rounded", "cuda_mma"},
                                {"experts", "cuda_mma_rounded", "cuda_mma"}};

}  // namespace

std::string_view current_impl_name(std::string_view op, std::string_view impl) {
  for (const Renamed& renamed : kRenamed)
    if (renamed.op == op && renamed.before == impl) return renamed.now;
  return impl;
}

std::vector<OpImpl> all_op_impls() {
  std::vector<OpImpl> impls;
  for_each_op([&](const auto& op) {
    for (const ImplInfo& impl : op.impls)
      impls.push_back({op.name, impl.name, impl.arch, impl.batch_invariant});
  });
  return impls;
}

}  // namespace dsv4
