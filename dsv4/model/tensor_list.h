// The tensors of an official checkpoint, from its config alone: names, dtypes and shapes
// (docs/spec/dsv4.md 10.2). A memory plan counts them when there is no checkpoint, and a synthetic
// checkpoint is made of them. load_weights() reads exactly these.
//
// The dtypes are those of the released instruct checkpoints: FP8 with E8M0 scales per 128 x 128,
// routed experts MXFP4, BF16 and F32 for the rest.

#pragma once

#include <string>
#include <vector>

#include "dsv4/formats/weight.h"
#include "dsv4/model/config.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct NamedTensor {
  std::string name;  // official
  TensorMeta meta;
};

int64_t total_bytes(const std::vector<NamedTensor>& tensors);

// With `drafter`, also those of the blocks mtp.* of the config (docs/spec/dsv4.md 9.1, 9.2). Throws
// kUnsupported when the columns of an expert are not a multiple of an MXFP4 group. routed: kMxfp4,
// or kNvfp4, which others publish.
std::vector<NamedTensor> official_tensor_list(const ModelConfig& config, bool drafter,
                                              WeightFormat routed = WeightFormat::kMxfp4);

}  // namespace dsv4
