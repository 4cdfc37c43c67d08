// Where the tensors of a model go on a device: one block of memory, tensors in the order in which a
// forward step reads them, each at a multiple of 256 bytes. Experts of a layer have equal sizes, so
// they lie at equal distances.

#pragma once

#include <string>
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

// Throws kResource in one line, saying what there is, when `free_bytes` of the card do not hold the
// weights and the cache that comes beside them (0: not known yet).
void check_room(int64_t weight_bytes, int64_t cache_bytes, int64_t free_bytes,
                const std::string& card);
// Zeroed memory for the weights. Throws what check_room() throws, before anything is allocated.
Buffer allocate_weights(Device& device, int64_t bytes, int64_t cache_bytes);  // CUDA builds

}  // namespace dsv4
