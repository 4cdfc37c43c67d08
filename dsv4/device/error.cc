#include "dsv4/device/error.h"

#include "dsv4/base/error.h"

namespace dsv4 {

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kResource : ErrorCode::kUnsupported;
  fail(code, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace dsv4
