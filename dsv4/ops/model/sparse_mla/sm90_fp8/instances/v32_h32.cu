#include "dsv4/ops/model/sparse_mla/sm90_fp8/kernel.cuh"

namespace dsv4::mla::sm90_fp8 {
template Instance instance<KvFormatV32, 32>(bool);
}
