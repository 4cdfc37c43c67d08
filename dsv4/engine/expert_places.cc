#include "dsv4/engine/expert_places.h"

#include <algorithm>
#include <numeric>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"

namespace dsv4 {
namespace {

// `each` for every layer and one more for the first ones, as far as `bytes` reach; `most` of each.
std::vector<int64_t> share_out(const ExpertPlaces& places, int64_t each, int64_t most,
                               int64_t bytes) {
  std::vector<int64_t> counts(places.place_bytes.size(), each);
  for (const int64_t of_layer : places.place_bytes) bytes -= each * of_layer;
  for (size_t l = 0; l < counts.size() && each < most && bytes >= places.place_bytes[l]; ++l)
    ++counts[l], bytes -= places.place_bytes[l];
  return counts;
}

// Experts of each layer with a copy in host memory.
std::vector<int64_t> copies(const ExpertPlaces& places, int64_t layer_bytes, int64_t host_bytes) {
  const int64_t each = std::min(host_bytes / layer_bytes, places.experts);
  return share_out(places, each, places.experts, host_bytes);
}

}  // namespace

int64_t ExpertPlaces::transient_bytes() const {
  return *std::max_element(place_bytes.begin(), place_bytes.end());
}

int64_t ExpertPlaces::resident() const {
  int64_t sum = 0;
  for (int64_t l = 0; l < layers(); ++l) sum += kept(l);
  return sum;
}

int64_t ExpertPlaces::homes() const {
  return all() - std::accumulate(fixed.begin(), fixed.end(), int64_t{0});
}

int64_t ExpertPlaces::gpu_bytes() const {
  int64_t sum = transient() * transient_bytes();
  for (int64_t l = 0; l < layers(); ++l) sum += kept(l) * place_bytes[static_cast<size_t>(l)];
  return sum;
}

int64_t ExpertPlaces::host_bytes() const {
  int64_t sum = 0;
  for (size_t l = 0; l < place_bytes.size(); ++l) sum += (experts - fixed[l]) * place_bytes[l];
  return shared_host_bytes > 0 ? std::min(sum, shared_host_bytes) : sum;
}

ExpertPlaces plan_places(std::vector<int64_t> image_bytes, int64_t num_experts, int64_t gpu_bytes,
                         int64_t host_bytes) {
  DSV4_CHECK(!image_bytes.empty() && num_experts > 0, "{} layers of {} experts", image_bytes.size(),
             num_experts);
  ExpertPlaces places{.experts = num_experts, .place_bytes = std::move(image_bytes)};
  for (int64_t& bytes : places.place_bytes) bytes = align_up(bytes, kPlaceAlign);
  const size_t layers = places.place_bytes.size();
  const int64_t layer_bytes =
      std::accumulate(places.place_bytes.begin(), places.place_bytes.end(), int64_t{0});
  places.fixed.assign(layers, 0);
  if (num_experts * layer_bytes <= gpu_bytes) {
    places.fixed.assign(layers, num_experts), places.slots.assign(layers, 0);
    return places;
  }
  const int64_t largest = places.transient_bytes();
  const int64_t most_half = std::max(kLeastHalf, gpu_bytes / largest / kTransientShare);
  const auto half = [&](int64_t kept) { return std::min(num_experts - kept, most_half); };
  int64_t kept = num_experts - 1;
  while (kept > 0 && kept * layer_bytes + 2 * half(kept) * largest > gpu_bytes) --kept;
  if (kept == 0)
    fail(ErrorCode::kResource,
         "{} of GPU memory are too few for experts: a place in each of {} layers and {} in transit "
         "take {} (shorter context, smaller batches or fewer bits per expert leave more)",
         size_text(gpu_bytes, 2), layers, 2 * half(1),
         size_text(layer_bytes + 2 * half(1) * largest, 2));
  places.half = half(kept);
  places.slots = share_out(places, kept, num_experts, gpu_bytes - places.transient() * largest);
  const std::vector<int64_t> copied = copies(places, layer_bytes, host_bytes);
  for (size_t l = 0; l < layers; ++l) {
    const int64_t fixed = num_experts - copied[l];
    if (fixed > places.slots[l])
      fail(ErrorCode::kResource,
           "{} of host memory hold {} of {} experts, and the GPU holds {} of {}: fewer bits "
           "(--experts), more host memory or a larger GPU is needed",
           size_text(host_bytes, 2), std::accumulate(copied.begin(), copied.end(), int64_t{0}),
           places.all(), places.resident(), places.all());
    places.fixed[l] = fixed, places.slots[l] -= fixed;
  }
  return places;
}

}  // namespace dsv4
