// Random tensors and cache rows, one element or row a thread; element i of a tensor depends on
// seed, the tensor's name and i alone, whatever part of the tensor is made, and where.

#include <map>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/device/current_device.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/pack_experts.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/pack_index_key.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/plan/synthetic_tensors.h"

namespace dsv4 {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 2048;  // grid-stride loops

__device__ int64_t first_index() {
  return blockIdx.x * int64_t{kThreads} + threadIdx.x;
}
__device__ int64_t index_step() {
  return gridDim.x * int64_t{kThreads};
}

// Two independent normals from 64 random bits (Box-Muller).
__device__ float2 normal_pair(uint64_t seed, uint64_t counter) {
  const uint64_t bits = random_bits(seed, counter);
  const float u = (static_cast<float>(bits >> 40) + 1.f) * 0x1p-24f;  // (0, 1]
  const float angle = static_cast<float>(bits & 0xffffffu) * (6.2831853f * 0x1p-24f);
  const float radius = sqrtf(-2.f * logf(u));
  return {radius * cosf(angle), radius * sinf(angle)};
}

template <class T>
__device__ T encode(float x) {
  return from_float<T>(x);
}
template <>
__device__ uint8_t encode<uint8_t>(float x) {
  return f32_to_e4m3(x);
}

// first: even, the element of the tensor that out[0] is
template <class T>
__global__ void normal_kernel(T* out, int64_t n, float deviation, uint64_t seed, int64_t first) {
  for (int64_t i = first_index(); 2 * i < n; i += index_step()) {
    const float2 pair = normal_pair(seed, first / 2 + i);
    out[2 * i] = encode<T>(deviation * pair.x);
    if (2 * i + 1 < n) out[2 * i + 1] = encode<T>(deviation * pair.y);
  }
}

// first: a multiple of 8, the byte of the tensor that out[0] is
__global__ void bits_kernel(uint8_t* out, int64_t bytes, uint64_t seed, int64_t first) {
  const int64_t words = bytes / 8;
  for (int64_t i = first_index(); i < words; i += index_step())
    reinterpret_cast<uint64_t*>(out)[i] = random_bits(seed, first / 8 + i);
  for (int64_t i = 8 * words + first_index(); i < bytes; i += index_step())
    out[i] = static_cast<uint8_t>(random_bits(seed, first + i));
}

__global__ void bytes_kernel(uint8_t* out, int64_t bytes, uint8_t value) {
  for (int64_t i = first_index(); i < bytes; i += index_step()) out[i] = value;
}

// Packs entry `i` of its page from `width` normals.
template <class Layout>
__device__ void pack(const Layout& layout, const float* x, uint8_t* page, int64_t entries,
                     int64_t i);
template <>
__device__ void pack(const KvLayout& layout, const float* x, uint8_t* page, int64_t entries,
                     int64_t i) {
  pack_kv_entry(layout, x, page, entries, i);
}
template <>
__device__ void pack(const IndexLayoutFp4& layout, const float* x, uint8_t* page, int64_t entries,
                     int64_t i) {
  pack_index_key(layout, x, page, entries, i);
}

constexpr int kMaxWidth = 1024;  // dims of a cache row
// Rows are put together in shared memory: arrays of a thread would make the driver set aside local
// memory for every thread that the GPU can hold.
constexpr int kRowThreads = 16;

template <class Layout>
__global__ void packed_rows_kernel(Layout layout, int width, uint8_t* pages, int64_t page_stride,
                                   int64_t rows, int page_entries, uint64_t seed) {
  extern __shared__ float shared_rows[];
  float* const x = shared_rows + threadIdx.x * kMaxWidth;
  for (int64_t row = blockIdx.x * int64_t{kRowThreads} + threadIdx.x; row < rows;
       row += gridDim.x * int64_t{kRowThreads}) {
    for (int c = 0; c < width; c += 2) {
      const float2 pair = normal_pair(seed, row * kMaxWidth + c);
      x[c] = pair.x, x[c + 1] = pair.y;
    }
    pack(layout, x, pages + row / page_entries * page_stride, page_entries, row % page_entries);
  }
}

// first: the byte of the tensor at which the part begins
void fill(Device& device, const SyntheticRule& rule, const TensorMeta& meta, std::byte* to,
          uint64_t seed, int64_t first) {
  DSV4_CHECK(first % 8 == 0 || rule.kind == SyntheticKind::kBytes, "{} at byte {} of its tensor",
             to_string(meta), first);
  const int64_t first_element = first / item_bytes(meta.dtype);
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  const LaunchShape shape{.grid = kBlocks, .block = kThreads};
  const int64_t n = meta.numel();
  switch (rule.kind) {
    case SyntheticKind::kE4M3:
      return launch(device, "make_e4m3", normal_kernel<uint8_t>, shape, bytes, n, rule.deviation,
                    seed, first_element);
    case SyntheticKind::kBits:
      return launch(device, "make_bits", bits_kernel, shape, bytes, meta.bytes(), seed, first);
    case SyntheticKind::kBytes:
      return launch(device, "make_bytes", bytes_kernel, shape, bytes, meta.bytes(), rule.byte);
    case SyntheticKind::kNormal:
      with_float_type(meta.dtype, [&](auto type) {
        using T = decltype(type);
        launch(device, "make_normal", normal_kernel<T>, shape, reinterpret_cast<T*>(to), n,
               rule.deviation, seed, first_element);
      });
      return;
    case SyntheticKind::kHostCopy:
      return;
  }
}

struct Named {
  std::string name;
  TensorMeta meta;
  const std::byte* begin;  // where the checkpoint has it
};

// The tensor of the checkpoint that these bytes are a part of, by the addresses of its tensors;
// null: of none.
const Named* named_part(const std::map<const std::byte*, Named>& names, const std::byte* data) {
  auto at = names.upper_bound(data);
  if (at == names.begin()) return nullptr;
  const Named& named = (--at)->second;
  return data - named.begin < named.meta.bytes() ? &named : nullptr;
}

uint64_t hash_of(const std::string& name) {
  uint64_t hash = 0;
  for (const char c : name) hash = mix64(hash + static_cast<unsigned char>(c));
  return hash;
}

// "layers.0.attn.wq_a.scale", ".weight" -> "layers.0.attn.wq_a.weight"
std::string sibling(const std::string& scale, const char* end) {
  return scale.substr(0, scale.rfind('.')) + end;
}

// How a tensor of the checkpoint is made; its weight and codebook are in the checkpoint too.
SyntheticRule rule_of(const Checkpoint& checkpoint, const Named& named) {
  const auto& tensors = checkpoint.tensors();
  const auto weight = tensors.find(sibling(named.name, ".weight"));
  const auto book = tensors.find(sibling(named.name, ".codebook"));
  std::span<const float> values;
  if (book != tensors.end())
    values = {book->second.view.as<float>(), static_cast<size_t>(book->second.view.numel())};
  return synthetic_rule(named.name, named.meta,
                        weight == tensors.end() ? nullptr : &weight->second.view, values);
}

template <class Pool>
void fill_pool(Device& device, const Pool& pool, int width, uint64_t seed) {
  if (pool.empty()) return;
  const LaunchShape shape{.grid = kBlocks, .block = kThreads};
  if (!pool.packed()) {
    return launch(device, "make_rows", normal_kernel<float>, shape, pool.pages.template as<float>(),
                  pool.pages.numel(), 1.f, seed, int64_t{0});
  }
  const LaunchShape rows{
      .grid = kBlocks, .block = kRowThreads, .shared = kRowThreads * kMaxWidth * sizeof(float)};
  launch(device, "make_rows", packed_rows_kernel<decltype(pool.layout)>, rows, pool.layout, width,
         pool.pages.template as<uint8_t>(), pool.pages.row_stride(), pool.num_rows(),
         pool.page_entries, seed);
}

}  // namespace

void make_on_device(Model& model, std::shared_ptr<Device> device, uint64_t seed,
                    int64_t cache_bytes, Context steps, const ExpertMemory* outside) {
  make_current(*device);
  steps.device = device.get();
  const std::vector<PackedExperts> packed = model.choose_layouts(steps);
  std::vector<TensorPlace> places = place_tensors(model), plain = places;
  std::vector<ImageJob> image_jobs = take_image_jobs(packed, plain);
  std::shared_ptr<ExpertStore> store;
  std::optional<StoredImages> stored;
  if (outside != nullptr) store = make_expert_store(model, *device, packed, *outside, steps);
  if (store != nullptr) {
    send_to_store(*store, image_jobs);
    stored.emplace(model, *store, *device);
    places = place_tensors(model);
  }
  std::map<const std::byte*, Named> names;
  for (const auto& [name, tensor] : model.checkpoint().tensors())
    names.emplace(tensor.view.data, Named{name, tensor.view, tensor.view.data});
  const int64_t staging_bytes = largest_expert(image_jobs);
  Buffer block =
      allocate_weights(*device, placed_bytes(places), std::max(cache_bytes, staging_bytes));
  const auto make = [&](const TensorPlace& place, std::byte* to) {
    const Named* const named = named_part(names, place.from.data);
    SyntheticRule rule;
    if (named != nullptr) rule = rule_of(model.checkpoint(), *named);
    if (rule.kind == SyntheticKind::kHostCopy) {
      device->memory().upload(to, place.from.data, place.from.bytes());
    } else {
      fill(*device, rule, place.from, to, mix64(seed + hash_of(named->name)),
           place.from.data - named->begin);
    }
  };
  std::map<const std::byte*, int64_t> offsets;
  for (const TensorPlace& place : places) offsets.emplace(place.from.data, place.offset);
  for (const TensorPlace& place : plain)
    make(place, block.view().data + offsets.at(place.from.data));
  const Buffer staging(DType::kU8, {std::max<int64_t>(staging_bytes, 1)}, device->memory());
  const Buffer images(DType::kU8, {stored ? stored->packed_bytes() : 1}, device->memory());
  for (const ImageJob& expert : image_jobs) {
    for (const TensorPlace& place : staged_tensors(expert))
      make(place, staging.view().data + place.offset);
    if (stored) {
      stored->pack(device->stream(), expert, staging.view().data, images.view().data);
    } else {
      pack_expert(device->stream(), expert, staging.view().data, block.view().data);
    }
  }
  device->wait();
  redirect_tensors(model, places, block.view().data);
  if (stored) stored->set_exponents(model, *device);
  find_expert_exponents(model, *device);
  model.place(std::move(device), std::move(block));
}

void make_on_devices(Model& model, std::span<const std::shared_ptr<Device>> devices, uint64_t seed,
                     int64_t cache_bytes, Context steps, const ExpertMemory* outside) {
  DSV4_CHECK(devices.size() == model.others().size() + 1, "{} devices for {} ranks", devices.size(),
             model.others().size() + 1);
  for (size_t rank = 0; rank < devices.size(); ++rank)
    make_on_device(rank == 0 ? model : *model.others()[rank - 1], devices[rank], seed, cache_bytes,
                   steps, outside);
  make_current(*devices.front());
}

void fill_caches(Device& device, std::span<const LayerCache> caches, uint64_t seed) {
  for (const LayerCache& cache : caches) {
    fill_pool(device, cache.window, cache.window.layout.width(), ++seed);
    fill_pool(device, cache.entries, cache.entries.layout.width(), ++seed);
    fill_pool(device, cache.keys, cache.keys.layout.width, ++seed);
  }
  device.wait();
}

}  // namespace dsv4
