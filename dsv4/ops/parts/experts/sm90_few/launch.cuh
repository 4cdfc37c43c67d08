// What launches the kernels of sm90_few, sm90_few_e4m3 and sm90_wide.

#pragma once

#include "dsv4/ops/parts/experts/sm90_few/call.cuh"

namespace dsv4::experts_few {

// The products, by K - kMinKbit; null where there is none.
struct Kernels {
  using Launch = void (*)(Device& device, const Params& p);
  Reader reader;
  Launch gate_up[kMaxKbit - kMinKbit + 1], down[kMaxKbit - kMinKbit + 1];
};

// Of every implementation, whatever codebooks and columns are.
const char* reject(const Context& context, const ExpertsArgs& args);
inline constexpr const char* kTooWide = "rows of more than 4096 columns";
void run(const Context& context, const ExpertsArgs& args, const Kernels& kernels);

}  // namespace dsv4::experts_few
