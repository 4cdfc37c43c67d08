// One kernel for each width of keys: 512 values, which are panels of values only, or 576.
// Instances: kValuePanels | kValuePanels + 1

#include "dsv4/ops/model/sparse_mla/sm90_bf16/kernel.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

template Instance instance<DSV4_INSTANCE>(bool);

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
