// The implementations of experts.h for few tokens on Hopper, in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4 {

// Kernel images of k-bit weights under kOfficial: products for up to 8 tokens of an expert at a
// time, weights rounded to f16.
const char* experts_sm90_few_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_few(const Context& context, const ExpertsArgs& args);
// The same with codebooks of at most 4 bits on the e4m3 grid: weights are exact.
const char* experts_sm90_few_e4m3_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_few_e4m3(const Context& context, const ExpertsArgs& args);
// The same for rows of up to 7,168 columns.
const char* experts_sm90_wide_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_wide(const Context& context, const ExpertsArgs& args);
// Whether this context can use all of them, whatever the experts are.
bool reads_images(const Context& context);
bool sm90_few_takes(const ExpertImages& images);   // its shapes
bool sm90_wide_takes(const ExpertImages& images);  // its shapes and codebooks

}  // namespace dsv4
