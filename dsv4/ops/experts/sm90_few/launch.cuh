// What launches the kernels of sm90_few and sm90_few_e4m3.

#pragma once

#include "dsv4/ops/experts/sm90_few/call.cuh"

namespace dsv4::experts_few {

// The products, by K - kMinKbit; null where there is none.
struct Kernels {
  using Launch = void (*)(Device& device, const Params& p);
  Reader reader;
  Launch gate_up[kMaxKbit - kMinKbit + 1], down[kMaxKbit - kMinKbit + 1];
};

// Of both implementations, whatever the codebooks are.
const char* reject(const Context& context, const ExpertsArgs& args);
void run(const Context& context, const ExpertsArgs& args, const Kernels& kernels);

}  // namespace dsv4::experts_few
