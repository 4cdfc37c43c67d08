// What an exchange is for its kernels (exchange.cuh, exchange_words.cuh, exchange_slots.cuh):
// tensors as units of bytes that all addresses allow, and the launches.

#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "dsv4/comm/communicator.h"
#include "dsv4/comm/exchange_slots.cuh"
#include "dsv4/comm/exchange_words.cuh"
#include "dsv4/device/launch.cuh"
#include "dsv4/tensor/tensor.h"

namespace dsv4::exchange {

inline constexpr int64_t kAlign = 16;  // of a tensor in a buffer, and the largest unit

template <class Unit>
__global__ void __launch_bounds__(kThreads, 1) exchange_kernel(const ExchangeParams p) {
  exchange<Unit>(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

template <class Unit>
__global__ void __launch_bounds__(kThreads) words_kernel(const ExchangeParams p, const bool early) {
  exchange_words<Unit>(p, early, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    slots_kernel(const ExchangeParams p, const bool before) {
  through_slots<Unit>(p, before, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

// What a rank gives and gets of one tensor.
struct Part {
  const std::byte* from;
  int64_t from_stride;                // bytes between rows
  TensorView all;                     // empty data: this rank gets nothing
  std::vector<int64_t> begin, count;  // [world], columns
  const int32_t* ids = nullptr;       // [rows]; null: columns
  ColumnEnds id_ends{};               // [world]
  Way way = Way::kWindow;
  bool stays = false;  // with kStored: of all ranks

  int64_t row_bytes() const { return all.dim(1) * item_bytes(all.dtype); }
  // What the rank has that has most of a row.
  int64_t widest_bytes() const { return *std::ranges::max_element(count) * item_bytes(all.dtype); }
};

inline int64_t lowest_bit(int64_t bits) {
  return bits & -bits;
}

// The largest power of two up to kAlign that divides what every rank has of a row, in bytes: equal
// on all ranks.
inline int64_t granule_of(std::span<const Part> parts) {
  int64_t bits = kAlign;
  for (const Part& part : parts) {
    bits |= part.row_bytes();
    for (size_t r = 0; r < part.begin.size(); ++r)
      bits |= (part.begin[r] | part.count[r]) * item_bytes(part.all.dtype);
  }
  return lowest_bit(bits);
}

// Whether an exchange goes by words (exchange_words.cuh). All ranks decide alike: it follows from
// what every rank has, and from `bytes` of all tensors.
inline bool by_words(std::span<const Part> parts, int64_t granule, int64_t bytes) {
  if (bytes > kMaxBytesByWords || granule % kWordBytes != 0) return false;
  // A rank gives columns of a tensor that has rows, whatever ids say of others.
  const auto gives = [&](size_t r) {
    return std::ranges::any_of(parts, [&](const Part& part) {
      return part.ids == nullptr && part.all.dim(0) > 0 && part.count[r] > 0;
    });
  };
  for (size_t r = 0; r < parts.front().count.size(); ++r)
    if (!gives(r)) return false;
  return true;
}

// The largest power of two that divides the granule and this rank's addresses.
inline int64_t unit_of(std::span<const Part> parts, int64_t granule) {
  int64_t bits = granule;
  for (const Part& part : parts) {
    bits |= reinterpret_cast<intptr_t>(part.from) | part.from_stride;
    if (part.all.data != nullptr)
      bits |= reinterpret_cast<intptr_t>(part.all.data) |
              part.all.row_stride() * item_bytes(part.all.dtype);
  }
  return lowest_bit(bits);
}

// Words that the rank takes that takes most; equal on all ranks.
inline int64_t most_taken_words(std::span<const Part> parts) {
  int64_t most = 0;
  const auto world = parts.front().count.size();
  for (size_t rank = 0; rank < world; ++rank) {
    int64_t words = 0;
    for (const Part& part : parts)
      for (size_t r = 0; r < world; ++r)
        if (r != rank) words += part.all.dim(0) * part.count[r] * item_bytes(part.all.dtype);
    most = std::max(most, words / kWordBytes);
  }
  return most;
}

inline ExchangedTensor exchanged(const Part& part, int64_t first_row, int64_t rows, int64_t unit) {
  const auto size = item_bytes(part.all.dtype);
  const int64_t to_stride = part.all.data == nullptr ? 0 : part.all.row_stride() * size;
  ExchangedTensor t{.from = part.from + first_row * part.from_stride,
                    .to = nullptr,
                    .from_stride = part.from_stride / unit,
                    .to_stride = to_stride / unit,
                    .window = 0,
                    .rows = static_cast<int32_t>(rows),
                    .columns = static_cast<int32_t>(part.row_bytes() / unit),
                    .begin = {},
                    .count = {},
                    .ids = part.ids == nullptr ? nullptr : part.ids + first_row,
                    .ends = {},
                    .way = part.way};
  for (size_t r = 0; r < part.id_ends.size(); ++r)
    t.ends[r] = static_cast<int32_t>(part.id_ends[r]);
  if (part.all.data != nullptr) t.to = part.all.data + first_row * to_stride;
  for (size_t r = 0; r < part.begin.size(); ++r) {
    t.begin[r] = static_cast<int32_t>(part.begin[r] * size / unit);
    t.count[r] = static_cast<int32_t>(part.count[r] * size / unit);
  }
  return t;
}

// run(a value of the unit)
template <class Run>
void for_unit(int64_t unit, const Run& run) {
  switch (unit) {
    case 16:
      return run(uint4{});
    case 8:
      return run(uint2{});
    case 4:
      return run(uint32_t{});
    case 2:
      return run(uint16_t{});
    default:
      return run(uint8_t{});
  }
}

inline void launch_exchange(Device& device, int ctas, const ExchangeParams& params, int64_t unit) {
  for_unit(unit, [&](auto value) {
    launch(device, "exchange", exchange_kernel<decltype(value)>, {.grid = ctas, .block = kThreads},
           params);
  });
}

// By words; unit: at most kWordBytes. early: this kernel and the next one may start before the
// kernels before them have ended
inline void launch_words(Device& device, const WordsGrid& grid, const ExchangeParams& params,
                         int64_t unit, bool early) {
  for_unit(unit, [&](auto value) {
    if constexpr (sizeof value <= kWordBytes)
      launch(device, "exchange_words", words_kernel<decltype(value)>,
             {.grid = grid.ctas, .block = grid.threads, .pdl = early}, params, early);
  });
}

inline void launch_slots(Device& device, const ExchangeParams& params, int64_t unit, bool before) {
  for_unit(unit, [&](auto value) {
    launch(device, before ? "exchange_give" : "exchange_take", slots_kernel<decltype(value)>,
           {.grid = kCtas, .block = kThreads}, params, before);
  });
}

}  // namespace dsv4::exchange
