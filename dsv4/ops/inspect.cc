#include "dsv4/ops/inspect.h"

#include "op_list.h"  // generated: cmake/module.cmake

namespace dsv4 {

std::vector<OpImpl> all_op_impls() {
  std::vector<OpImpl> impls;
  for_each_op([&](const auto& op) {
    for (const ImplInfo& impl : op.impls)
      impls.push_back({op.name, impl.name, impl.arch, impl.batch_invariant});
  });
  return impls;
}

}  // namespace dsv4
