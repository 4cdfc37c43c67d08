// One kernel for each layout of rows and number of heads that a CTA takes.
// Instances: KvFormatV4, 8 | KvFormatV4, 16 | KvFormatV4, 32 | KvFormatV4, 64
// Instances: KvFormatV32, 8 | KvFormatV32, 16 | KvFormatV32, 32 | KvFormatV32, 64

#include "dsv4/ops/model/sparse_mla/sm90_fp8/kernel.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

template Instance instance<DSV4_INSTANCE>(bool);

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
