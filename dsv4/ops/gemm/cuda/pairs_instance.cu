// The small-M kernels of K-bit weights by pairs (weights/kbit_pairs.cuh), for one K: tiles of 8
// and 16 rows, x in bf16 or f16. They are the loop of small_m.cuh with another decoder. They are
// compiled apart from instance.cu because there is no GEMV kernel and no kernel of larger tiles
// with this decoder.
//
// Shared memory has all of x and the table of pairs; launch_cuda.cc chooses the tile by that.
//
// Instances: 2 | 3 | 4 | 5

#include "dsv4/ops/gemm/cuda/kernels.h"
#include "dsv4/ops/gemm/cuda/small_m.cuh"

namespace dsv4::gemm::cuda {

template <int K>
void small_m_pairs(Device& device, const Problem& p) {
  const auto run = [&]<class X>(OperandType<X>) {
    using Decode = KbitPairs<K, X>;
    p.tile_m == 8 ? launch_small_m<Decode, X, 8>(device, p)
                  : launch_small_m<Decode, X, 16>(device, p);
  };
  p.x_dtype == DType::kF16 ? run(OperandType<f16>()) : run(OperandType<bf16>());
}
template void small_m_pairs<DSV4_INSTANCE>(Device& device, const Problem& p);

}  // namespace dsv4::gemm::cuda
