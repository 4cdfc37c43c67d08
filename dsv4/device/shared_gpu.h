// Whether ranks of this program share a GPU, as they do in tests of a machine with one.
//
// The exchange of one rank then waits in some SMs for the other rank, whose kernels need those SMs,
// too. A kernel that takes all registers of an SM may wait for the exchange, and the exchange for
// it. The implementations that have waited so, or have a kernel that is shaped like theirs
// (gemm/sm90/large_m, grouped and kbit_wide), refuse calls where GPUs are shared.

#pragma once

#include <atomic>

namespace dsv4 {

namespace detail {
inline std::atomic<bool> ranks_share_gpus = false;
}

// Before the first call of an op. There is no way back.
inline void share_gpus() {
  detail::ranks_share_gpus = true;
}
inline bool gpus_are_shared() {
  return detail::ranks_share_gpus;
}

}  // namespace dsv4
