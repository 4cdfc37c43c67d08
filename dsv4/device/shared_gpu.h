// Whether ranks of this program share a GPU, as they do in tests of a machine with one. Ranks that
// are processes have contexts of their own, of which a GPU runs one at a time.
//
// The exchange of one rank then waits in some SMs for the other ranks. A kernel whose CTAs wait
// for each other and fill an SM each (both products of gemm/sm90/grouped in one launch) may not get
// all of its SMs before the exchange ends, and the exchange waits for it: it refuses calls where
// GPUs are shared. gemm/sm90/kbit_wide refuses them too, as it was never run beside an exchange;
// its CTAs wait inside a cluster only.

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
