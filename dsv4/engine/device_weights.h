// Where the tensors of a model go on a device: one block of memory, tensors in the order in which a
// forward step reads them, each at a multiple of 256 bytes. Experts of a layer have equal sizes, so
// they lie at equal distances.

#pragma once

#include <vector>

#include "dsv4/model/model.h"

namespace dsv4 {

struct TensorPlace {
  ConstTensorView from;  // on the host
  int64_t offset = 0;    // in the block
};

// A tensor that is read twice has one place.
std::vector<TensorPlace> place_tensors(Model& model);
int64_t placed_bytes(const std::vector<TensorPlace>& places);
// Points the model's views into the block.
void redirect_tensors(Model& model, const std::vector<TensorPlace>& places, const std::byte* block);

// Zeroed memory for them. Throws kResource, saying what there is, when the card has no room.
Buffer allocate_weights(Device& device, int64_t bytes);  // CUDA builds

}  // namespace dsv4
