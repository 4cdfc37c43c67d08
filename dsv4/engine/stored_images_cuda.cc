// Experts from staging memory to a store (pack_experts.h): packed once, on the device, then copied
// home and to the place in which they begin.

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/host_memory_limits.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/memory.h"
#include "dsv4/engine/engine_options.h"
#include "dsv4/engine/expert_memory.h"
#include "dsv4/engine/pack_experts.h"
#include "dsv4/engine/workspace.h"
#include "dsv4/ops/kbit/pack_image.h"

namespace dsv4 {
namespace {

static_assert(sizeof(ExponentRange) == 2 * sizeof(int32_t));

// Page-locked memory and what lies in it.
struct StoreInMappedMemory {
  MappedMemory locked;
  ExpertStore store;

  StoreInMappedMemory(const ExpertPlaces& places, Device& device, const ExpertOrder& order)
      : locked(device.info().ordinal), store(places, locked, device.memory(), order) {}
};

// Before there is a store: a table without memory makes the model leave its images out.
void point_at_no_table(Model& model) {
  model.for_each_images([](ExpertImages& images) {
    images.places = {TensorMeta::contiguous(DType::kI64, {images.gate_up_bytes.dim(0)}),
                     unmapped_address(0)};
  });
}

void check_images(const Model& model, const std::vector<PackedExperts>& packed) {
  if (model.weights().drafter)
    refuse_expert_memory(
        "the drafter has experts of its own, which have no places yet: give --speculate lookup "
        "or off");
  if (std::ssize(packed) == model.config().num_layers && !packed.empty()) return;
  refuse_expert_memory(
      fmt::format("experts of {} of {} layers have kernel images here, and all must have them: "
                  "official numerics, a Hopper GPU, and experts in MXFP4, NVFP4 or 2 to 5 bits, "
                  "with an e4m3 codebook where a row has more than 4096 columns",
                  packed.size(), model.config().num_layers));
}

}  // namespace

StoredImages::StoredImages(const Model& model, const ExpertStore& store, Device& device)
    : packed_bytes_(store.places().transient_bytes()) {
  const std::vector<LayerWeights>& layers = model.weights().layers;
  if (std::ranges::any_of(layers, [](const LayerWeights& l) { return may_fold(l.moe.images); }))
    ranges_ = Buffer(DType::kI32, {store.places().all(), 6}, device.memory());
  device.wait();  // zeroed on the device's stream
}

void StoredImages::pack(cudaStream_t stream, const ImageJob& job, const std::byte* staging,
                        std::byte* packed) const {
  ImageJob here = job;
  here.gate_up_offset = 0, here.down_offset = job.gate_up.bytes();
  pack_expert(stream, here, staging, packed);
  const auto bytes = static_cast<size_t>(job.gate_up.bytes() + job.down.bytes());
  const ImageJob::Stored& to = *job.stored_at;
  if (to.home != nullptr)
    cuda_check(cudaMemcpyAsync(to.home, packed, bytes, cudaMemcpyDeviceToHost, stream),
               "copy of an expert to host memory");
  if (to.place != nullptr)
    cuda_check(cudaMemcpyAsync(to.place, packed, bytes, cudaMemcpyDeviceToDevice, stream),
               "copy of an expert to its place");
  if (ranges_.empty()) return;
  auto* const ranges = reinterpret_cast<ExponentRange*>(ranges_.view().data) + 3 * to.index;
  if (job.gate_up.scale == ImageScale::kUe8m0)
    find_exponents(stream, job.gate_up, true, packed, 1, ranges);
  if (job.down.scale == ImageScale::kUe8m0)
    find_exponents(stream, job.down, false, packed + here.down_offset, 1, ranges + 2);
}

void StoredImages::set_exponents(Model& model, Device& device) const {
  if (ranges_.empty()) return;
  std::vector<ExponentRange> all(static_cast<size_t>(ranges_.view().numel() / 2));
  device.memory().download(reinterpret_cast<std::byte*>(all.data()), ranges_.view().data,
                           ranges_.view().bytes());
  const ExponentRange* at = all.data();
  model.for_each_images([&](ExpertImages& images) {
    std::vector<ExponentRange> gate_up, down;
    for (int64_t e = 0; e < images.gate_up_bytes.dim(0); ++e, at += 3)
      gate_up.push_back(at[0]), gate_up.push_back(at[1]), down.push_back(at[2]);
    if (!images.exponents.empty()) set_exponents_of(images, gate_up, down, device);
  });
}

std::shared_ptr<ExpertStore> make_expert_store(Model& model, Device& device,
                                               const std::vector<PackedExperts>& packed,
                                               const ExpertMemory& memory, const Context& steps) {
  check_images(model, packed);
  std::vector<int64_t> image_bytes;
  for (const PackedExperts& layer : packed)
    image_bytes.push_back(layer.images.gate_up.bytes() + layer.images.down.bytes());
  point_at_no_table(model);
  const DenseBytes dense{.weights = placed_bytes(place_tensors(model)),
                         .cache = cache_bytes(model.config(), steps.numerics, memory.limits),
                         .workspace = plan_workspace(model, steps, memory.limits, 0).total()};
  const ExpertPlaces places =
      plan_expert_memory(memory, dense, std::move(image_bytes), model.config().num_experts,
                         device.free_bytes(), host_memory_limits().available_bytes);
  if (places.complete()) {
    model.for_each_images([](ExpertImages& images) { images.places = {}; });
    return nullptr;
  }
  const auto made = std::make_shared<StoreInMappedMemory>(places, device, memory.order);
  std::shared_ptr<ExpertStore> store(made, &made->store);
  std::vector<ExpertsFetchArgs> fetch;
  for (int64_t l = 0; l < places.layers(); ++l) fetch.push_back(store->layer(l));
  model.fetch_experts(fetch, store);
  return store;
}

}  // namespace dsv4
