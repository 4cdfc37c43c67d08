// What launches the kernels of sm90_few, sm90_few_e4m3 and sm90_wide.

#pragma once

#include "dsv4/ops/parts/experts/image_call.h"

namespace dsv4::experts_kernel::sm90_few {

// The products, by K - kMinKbit; null where there is none.
struct Kernels {
  using Launch = void (*)(Device& device, const Params& p);
  Reader reader;
  Launch gate_up[kMaxKbit - kMinKbit + 1], down[kMaxKbit - kMinKbit + 1];
};

// What all of them refuse, whatever codebooks and columns are.
const char* reject_call(const Context& context, const ExpertsArgs& args);
inline constexpr const char* kTooWide = "rows of more than 4096 columns";
void run_kernels(const Context& context, const ExpertsArgs& args, const Kernels& kernels);

// The kernels of this folder, one K in each file that instance.cu becomes.
template <int K, bool kGateUp>
void launch_product(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few
