#include "dsv4/engine/expert_store.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

using experts_fetch_kernel::LayerPlaces;

constexpr int64_t kLockingThreads = 8;

// Buffers of these sizes. Several threads: locking a page takes longer than reading it from a disk.
std::vector<Buffer> allocate_all(const std::vector<int64_t>& sizes, Memory& memory) {
  std::vector<Buffer> buffers(sizes.size());
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < sizes.size(); i = next++)
        buffers[i] = Buffer(DType::kU8, {sizes[i]}, memory);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = sizes.size();
    }
  };
  std::vector<std::thread> threads;
  const auto wanted = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kLockingThreads);
  for (int64_t i = 1; i < std::min<int64_t>(wanted, std::ssize(sizes)); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return buffers;
}

}  // namespace

ExpertStore::ExpertStore(const ExpertPlaces& places, Memory& locked, Memory& device,
                         const ExpertOrder& order, int64_t piece_bytes)
    : places_(places), device_(device) {
  const ExpertOrder ordered = checked(order);
  memory_ = Buffer(DType::kU8, {places_.gpu_bytes()}, device);
  std::byte* at = memory_.view().data;
  const auto rows = [&](int64_t count, int64_t bytes) {
    const TensorView view(TensorMeta::contiguous(DType::kU8, {count, bytes}), at);
    at += count * bytes;
    return view;
  };
  for (int64_t l = 0; l < places_.layers(); ++l)
    kept_.push_back(rows(places_.kept(l), places_.place_bytes[static_cast<size_t>(l)]));
  transient_ = rows(places_.transient(), places_.transient_bytes());
  allocate_homes(locked, ordered, piece_bytes);
  begin_state(ordered);
}

ExpertOrder ExpertStore::checked(const ExpertOrder& order) const {
  ExpertOrder ordered = order;
  ordered.resize(static_cast<size_t>(places_.layers()));
  for (std::vector<int32_t>& layer : ordered) {
    if (layer.empty()) {
      layer.resize(static_cast<size_t>(places_.experts));
      std::iota(layer.begin(), layer.end(), 0);
    }
    std::vector<int32_t> sorted = layer;
    std::sort(sorted.begin(), sorted.end());
    DSV4_CHECK(std::ssize(sorted) == places_.experts, "an order of {} of {} experts", sorted.size(),
               places_.experts);
    for (size_t e = 0; e < sorted.size(); ++e)
      DSV4_CHECK(sorted[e] == static_cast<int32_t>(e), "expert {} is not once in the order", e);
  }
  return ordered;
}

void ExpertStore::allocate_homes(Memory& locked, const ExpertOrder& order, int64_t piece_bytes) {
  struct At {
    size_t piece;
    int64_t offset;
  };
  std::vector<int64_t> sizes;
  std::vector<At> at(static_cast<size_t>(places_.all()));
  std::vector<bool> fixed(at.size());
  std::vector<size_t> own;  // copies with memory of their own
  int64_t taken = 0;
  for (int64_t l = 0; l < places_.layers(); ++l) {
    const auto layer = static_cast<size_t>(l);
    const auto first = static_cast<size_t>(l * places_.experts);
    for (int64_t i = 0; i < places_.fixed[layer]; ++i)
      fixed[first + static_cast<size_t>(order[layer][static_cast<size_t>(i)])] = true;
    const int64_t bytes = places_.place_bytes[layer];
    for (size_t i = first; i < first + static_cast<size_t>(places_.experts); ++i) {
      if (fixed[i]) continue;
      if (places_.shared_host_bytes > 0 && taken + bytes > places_.shared_host_bytes) {
        DSV4_CHECK(!own.empty() && bytes == places_.place_bytes[0], "experts of {} and {} bytes",
                   bytes, places_.place_bytes[0]);
        at[i] = at[own[i % own.size()]];
        continue;
      }
      own.push_back(i), taken += bytes;
      if (sizes.empty() || sizes.back() + bytes > piece_bytes) sizes.push_back(0);
      at[i] = {sizes.size() - 1, sizes.back()};
      sizes.back() += bytes;
    }
  }
  pieces_ = allocate_all(sizes, locked);
  homes_.resize(at.size());
  for (size_t i = 0; i < at.size(); ++i)
    homes_[i] = fixed[i] ? nullptr : pieces_[at[i].piece].view().data + at[i].offset;
}

// The order's first experts take the fixed places, the next ones the slots.
void ExpertStore::begin_state(const ExpertOrder& order) {
  const int64_t layers = places_.layers(), e = places_.experts;
  const int64_t most = places_.kept(0) + places_.transient();  // no layer has more places
  const Buffer homes(DType::kI64, {layers, e}), addresses(DType::kI64, {layers, e}),
      uses(DType::kI32, {layers, e, 2}), place_of(DType::kI32, {layers, e}),
      expert_in(DType::kI32, {layers, most}), step(DType::kI32, {layers}),
      totals(DType::kI64, {layers, e}), counters(DType::kI64, {layers, 4});
  first_places_.resize(homes_.size());
  for (int64_t l = 0; l < layers; ++l) {
    const auto index = static_cast<size_t>(l);
    const LayerPlaces state{
        .experts = static_cast<int>(e),
        .fixed = static_cast<int>(places_.fixed[index]),
        .slots = static_cast<int>(places_.slots[index]),
        .transient = static_cast<int>(places_.transient()),
        .uses = reinterpret_cast<experts_fetch_kernel::ExpertUse*>(uses.as<int32_t>() + l * e * 2),
        .place_of = place_of.as<int32_t>() + l * e,
        .expert_in = expert_in.as<int32_t>() + l * most,
        .step = reinterpret_cast<uint32_t*>(step.as<int32_t>() + l),
        .totals = totals.as<int64_t>() + l * e};
    state.clear();
    for (int64_t p = 0; p < places_.kept(l); ++p) {
      const int32_t expert = order[index][static_cast<size_t>(p)];
      state.put(expert, static_cast<int>(p));
      first_places_[static_cast<size_t>(l * e + expert)] = kept_place(l, p);
    }
    for (int64_t i = l * e; i < (l + 1) * e; ++i) {
      const std::byte *home = homes_[static_cast<size_t>(i)],
                      *place = first_places_[static_cast<size_t>(i)];
      homes.as<int64_t>()[i] = reinterpret_cast<int64_t>(home);
      addresses.as<int64_t>()[i] = reinterpret_cast<int64_t>(place != nullptr ? place : home);
    }
  }
  const auto send = [&](const Buffer& from, Buffer& to) {
    const ConstTensorView view = from.view();
    to = Buffer(view.dtype, {view.numel()}, device_);
    device_.upload(to.view().data, view.data, view.bytes());
  };
  send(homes, home_addresses_), send(addresses, addresses_), send(uses, uses_);
  send(place_of, place_of_), send(expert_in, expert_in_), send(step, step_);
  send(totals, totals_), send(counters, counters_);
}

std::byte* ExpertStore::home(int64_t layer, int64_t expert) const {
  return homes_[static_cast<size_t>(layer * places_.experts + expert)];
}

std::byte* ExpertStore::first_place(int64_t layer, int64_t expert) const {
  return first_places_[static_cast<size_t>(layer * places_.experts + expert)];
}

std::byte* ExpertStore::kept_place(int64_t layer, int64_t place) const {
  const TensorView& kept = kept_[static_cast<size_t>(layer)];
  return kept.data + place * kept.dim(1);
}

ExpertsFetchArgs ExpertStore::layer(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  const int64_t e = places_.experts, places = places_.kept(layer) + places_.transient();
  const int64_t most = places_.kept(0) + places_.transient();
  const auto part = [](const Buffer& all, int64_t from, int64_t count) {
    return all.view().slice(0, from, from + count);
  };
  return {.homes = part(home_addresses_, layer * e, e),
          .memory = kept_[index],
          .fixed = places_.fixed[index],
          .transient = transient_.slice(1, 0, places_.place_bytes[index]),
          .places = part(addresses_, layer * e, e),
          .uses = part(uses_, layer * e * 2, e * 2).reshape({e, 2}),
          .place_of = part(place_of_, layer * e, e),
          .expert_in = part(expert_in_, layer * most, places),
          .step = part(step_, layer, 1),
          .totals = part(totals_, layer * e, e),
          .counters = part(counters_, layer * 4, 4)};
}

void ExpertStore::read_places(std::span<int32_t> place_of) const {
  DSV4_CHECK(std::ssize(place_of) == places_.all(), "{} places for {} experts", place_of.size(),
             places_.all());
  device_.download(reinterpret_cast<std::byte*>(place_of.data()), place_of_.view().data,
                   place_of_.view().bytes());
}

std::vector<int64_t> ExpertStore::read(const Buffer& state) const {
  std::vector<int64_t> values(static_cast<size_t>(state.view().numel()));
  device_.download(reinterpret_cast<std::byte*>(values.data()), state.view().data,
                   state.view().bytes());
  return values;
}

ExpertStats ExpertStore::read_stats() const {
  const std::vector<int64_t> all = read(counters_);
  ExpertStats stats{.layers = {}, .prompt_steps = prompt_steps_, .prompt_bytes = prompt_bytes_};
  for (size_t l = 0; l < places_.place_bytes.size(); ++l) {
    const int64_t* const of_layer = &all[4 * l];
    const int64_t bytes = places_.place_bytes[l];
    stats.layers.push_back({.hits = of_layer[0],
                            .moves = of_layer[1],
                            .read_at_home = of_layer[2],
                            .impossible = of_layer[3],
                            .moved_bytes = of_layer[1] * bytes,
                            .home_bytes = of_layer[2] * bytes});
  }
  return stats;
}

std::vector<std::vector<int64_t>> ExpertStore::read_totals() const {
  const std::vector<int64_t> all = read(totals_);
  std::vector<std::vector<int64_t>> layers;
  for (auto at = all.begin(); at != all.end(); at += places_.experts)
    layers.emplace_back(at, at + places_.experts);
  return layers;
}

}  // namespace dsv4
