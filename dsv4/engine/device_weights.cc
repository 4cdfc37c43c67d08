#include "dsv4/engine/device_weights.h"

#include <algorithm>
#include <unordered_map>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"
#include "dsv4/engine/expert_store.h"

namespace dsv4 {
namespace {
constexpr int64_t kAlign = 256;
}

std::vector<TensorPlace> place_tensors(Model& model) {
  std::vector<TensorPlace> places;
  std::unordered_map<const std::byte*, int64_t> seen;  // -> bytes
  int64_t offset = 0;
  model.for_each_tensor([&](ConstTensorView& view) {
    const auto [at, fresh] = seen.emplace(view.data, view.bytes());
    DSV4_CHECK(fresh || at->second == view.bytes(), "{} shares memory with {} bytes",
               to_string(view), at->second);
    if (!fresh) return;
    places.push_back({view, offset});
    offset += align_up(view.bytes(), kAlign);
  });
  return places;
}

int64_t placed_bytes(const std::vector<TensorPlace>& places) {
  if (places.empty()) return 0;
  return places.back().offset + align_up(places.back().from.bytes(), kAlign);
}

void redirect_tensors(Model& model, const std::vector<TensorPlace>& places,
                      const std::byte* block) {
  std::unordered_map<const std::byte*, int64_t> offsets;
  for (const TensorPlace& place : places) offsets.emplace(place.from.data, place.offset);
  model.for_each_tensor([&](ConstTensorView& view) { view.data = block + offsets.at(view.data); });
}

int64_t ImageJob::stored_bytes() const {
  return placed_bytes(staged_tensors(*this));
}

std::vector<TensorPlace> staged_tensors(const ImageJob& job) {
  std::vector<TensorPlace> places;
  for (const WeightView* w : {&job.stored.w1, &job.stored.w3, &job.stored.w2})
    for (const ConstTensorView* view : {&w->data, &w->scale})
      places.push_back({*view, placed_bytes(places)});
  return places;
}

std::vector<ImageJob> take_image_jobs(const std::vector<PackedExperts>& packed,
                                      std::vector<TensorPlace>& places) {
  std::vector<ImageJob> jobs;
  const auto take = [&](const ConstTensorView& bytes) {
    const auto at = std::find_if(places.begin(), places.end(), [&](const TensorPlace& place) {
      return place.from.data == bytes.data;
    });
    DSV4_CHECK(at != places.end(), "no place for images of {}", to_string(bytes));
    const int64_t offset = at->offset;
    places.erase(at);
    return offset;
  };
  for (const PackedExperts& layer : packed) {
    const ExpertImages& images = layer.images;
    ImageJob job{.gate_up = images.gate_up,
                 .down = images.down,
                 .gate_up_offset = take(images.gate_up_bytes),
                 .down_offset = take(images.down_bytes)};
    for (const ExpertWeights& expert : layer.stored) {
      job.stored = expert;
      jobs.push_back(job);
      job.gate_up_offset += images.gate_up.bytes(), job.down_offset += images.down.bytes();
    }
  }
  return jobs;
}

void send_to_store(const ExpertStore& store, std::vector<ImageJob>& jobs) {
  const int64_t of_layer = store.places().experts;
  DSV4_CHECK(std::ssize(jobs) == store.places().all(), "{} images for a store of {}", jobs.size(),
             store.places().all());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto index = static_cast<int64_t>(i), layer = index / of_layer, e = index % of_layer;
    jobs[i].stored_at = {store.home(layer, e), store.first_place(layer, e), index};
  }
}

void check_room(int64_t weight_bytes, int64_t cache_bytes, int64_t free_bytes,
                const std::string& gpu) {
  if (weight_bytes + cache_bytes <= free_bytes) return;
  if (weight_bytes > free_bytes)
    fail(ErrorCode::kResource,
         "the weights take {}, {} has {} free: `dsv4 plan` says what fits (fewer "
         "bits per expert, a larger GPU)",
         size_text(weight_bytes), gpu, size_text(free_bytes));
  fail(ErrorCode::kResource,
       "the weights take {} and the cache {}, {} has {} free: `dsv4 plan` "
       "says what fits (fewer tokens or sequences, fewer bits per expert, a larger GPU)",
       size_text(weight_bytes), size_text(cache_bytes), gpu, size_text(free_bytes));
}

}  // namespace dsv4
