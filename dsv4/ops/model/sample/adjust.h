// The logit of a token that has a term, as sample.h defines it: the same bits on host and device.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/ops/model/sample/sample.h"

namespace dsv4::sample_kernel {

DSV4_HD inline float adjusted(float l, const TokenTerm& term, const SamplingParams& how) {
#ifdef __CUDA_ARCH__
  const float penalty = __fmul_rn(how.frequency_penalty, static_cast<float>(term.count));
#else
  const float penalty = how.frequency_penalty * static_cast<float>(term.count);
#endif
  if (term.seen != 0) l = l > 0 ? l / how.repetition_penalty : l * how.repetition_penalty;
  l = l - penalty;
  if (term.count > 0) l = l - how.presence_penalty;
  return l + term.bias;
}

}  // namespace dsv4::sample_kernel
