// Tensor names: whatever naming a checkpoint uses, the engine sees official names
// (docs/spec/dsv4.md 10.2, 10.5).
//
// Recognized are official names, transformers' module names (as its save_pretrained writes them),
// and any mixture, such as official names prefixed with "model.". Stacked experts become slices:
//
//   ...experts.gate_up_proj  [E, 2I, D]  ->  experts.e.w1.weight [I, D] (first half of the rows),
//                                            experts.e.w3.weight [I, D]
//   ...experts.down_proj     [E, D, I]   ->  experts.e.w2.weight [D, I]
//
// and likewise their ..._scale_inv. A name that no rule matches stays as it is.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct OfficialTensor {
  std::string name;
  ConstTensorView view;
  bool half = false;  // one of the two halves of a stacked gate_up_proj
};

// The tensors that `stored` stands for: one, or all slices of stacked experts. Throws kBadInput
// when a stacked tensor does not have the expected shape.
std::vector<OfficialTensor> official_tensors(std::string_view stored, const ConstTensorView& view);

// Renaming alone. Stacked experts are renamed to "...experts.w1w3.weight" and
// "...experts.w2.weight", or ".scale". Official names stay unchanged.
std::string official_name(std::string_view stored);

}  // namespace dsv4
