#include "dsv4/ops/model/sparse_mla/sm90_bf16/kernel.cuh"

namespace dsv4::mla::sm90_bf16 {
template Instance instance<kValuePanels>(bool);
}
