// Every call of the CUDA runtime goes through check().

#pragma once

#include <cuda_runtime.h>

namespace dsv4 {

// Throws kResource for a failed allocation and kUnsupported otherwise: "cudaMalloc: out of memory
// (cudaErrorMemoryAllocation)".
void cuda_check(cudaError_t status, const char* what);

// Throws for the error of the launch itself; an earlier asynchronous failure is reported by the
// next wait for the stream.
inline void cuda_check_launch(const char* kernel) {
  cuda_check(cudaGetLastError(), kernel);
}

}  // namespace dsv4
