// Where the tensors of a model go on a device: one block of memory, tensors in the order in which a
// forward step reads them, each at a multiple of 256 bytes. Experts of a layer have equal sizes, so
// they lie at equal distances.

#pragma once

#include <optional>
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

// Where the images of experts go in the block: gate_up and down of expert e, and what they are made
// of on the host.
struct ImageJob {
  ExpertWeights stored;
  KbitImage gate_up, down;
  int64_t gate_up_offset, down_offset;
  // Instead of that, with an expert store: both images, one behind the other, go to either or both
  // of its home and its first place.
  struct Stored {
    std::byte *home = nullptr, *place = nullptr;
    int64_t index = 0;  // of the expert among those of all layers
  };
  std::optional<Stored> stored_at{};

  int64_t stored_bytes() const;  // with each tensor aligned
};
// Splits off the places of images, which are not copied. One job for each expert.
std::vector<ImageJob> take_image_jobs(const std::vector<PackedExperts>& packed,
                                      std::vector<TensorPlace>& places);
// Sends the images of all jobs to the store instead.
void send_to_store(const ExpertStore& store, std::vector<ImageJob>& jobs);
// Where a job's tensors lie while they are packed: w1, w3, w2, data and scale of each; offsets from
// the start of the staging memory.
std::vector<TensorPlace> staged_tensors(const ImageJob& job);

// Throws kResource, naming the sizes in one line, when `free_bytes` of the GPU do not hold the
// weights and the cache (0: its size is not known yet).
void check_room(int64_t weight_bytes, int64_t cache_bytes, int64_t free_bytes,
                const std::string& gpu);
// Zero-filled memory for the weights. Calls check_room() before it allocates.
Buffer allocate_weights(Device& device, int64_t bytes, int64_t cache_bytes);  // CUDA builds

}  // namespace dsv4
