// What launches the kernels of sm90_few, sm90_few_e4m3 and sm90_wide.

#pragma once

#include <array>

#include "dsv4/ops/parts/experts/halves_call.h"

namespace dsv4::experts_kernel::sm90_few {

// The instances of a product, by KbitImage::kind(); null where there is none.
using Launches = std::array<void (*)(Device& device, const Params& p), KbitImage::kKinds>;
struct Kernels {
  Reader reader;
  Launches gate_up, down;
  bool gate_up_waits_first = false;  // before it lets the next kernel start
};

// What all of them refuse, whatever codebooks and columns are.
const char* reject_call(const Context& context, const ExpertsArgs& args);
void run_kernels(const Context& context, const ExpertsArgs& args, const Kernels& kernels);

// And for halves.h, whatever codebooks and columns are.
const char* reject_half(const Context& context, const ExpertsHiddenArgs& args);
const char* reject_half(const Context& context, const ExpertsOutputArgs& args);
void run_hidden(const Context& context, const ExpertsHiddenArgs& args, const Kernels& kernels);
void run_output(const Context& context, const ExpertsOutputArgs& args, const Kernels& kernels);

// The kernels of this folder, one K in each file that instance.cu becomes.
template <int K, bool kGateUp>
void launch_product(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few
