// What follows the products of gate and up, for models of any kind:
//
//   out[m] = weight[m] * (a(min(gate[m], limit)) * clamp(up[m], -limit, limit))

#pragma once

#include <cmath>
#include <cstdint>

namespace dsv4::gemm {

enum class Gate : uint8_t {  // a(v)
  kSilu,                     // v / (1 + e^-v)
  kGelu,                     // v (1 + erf(v / sqrt(2))) / 2
  kGeluTanh,                 // v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) / 2
};

struct GatedStep {
  const float* weight = nullptr;  // [m]; null: 1
  float limit = 0;                // 0: no clamp
  Gate gate = Gate::kSilu;
};

// As kernels take it: a limit that is never reached stands for none.
inline GatedStep with_limit(GatedStep step) {
  if (!(step.limit > 0)) step.limit = HUGE_VALF;
  return step;
}

}  // namespace dsv4::gemm
