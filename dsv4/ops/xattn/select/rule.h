// The rule of xattn_select.h for one row, as far as implementations share it. Host and device.

#pragma once

#include <cstdint>

#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4::xattn_select_kernel {

// The score that counts; !(v > 0) is also true for NaN.
DSV4_HD constexpr float usable_score(float v) {
  if (!(v > 0.f)) return 0.f;
  return v < 4096.f ? v : 4096.f;
}
// The mass of a usable score.
DSV4_HD constexpr uint64_t mass(float v) {
  return static_cast<uint64_t>(v * 0x1p40f);
}
// The smallest integer that is not below tau * total.
DSV4_HD inline uint64_t needed_mass(float tau, uint64_t total) {
  const double need = static_cast<double>(tau) * static_cast<double>(total);
  if (!(need > 0)) return 0;
  const auto below = static_cast<uint64_t>(need);
  return static_cast<double>(below) < need ? below + 1 : below;
}

// Everything about a row but its scores.
struct RowRule {
  int visible;   // blocks 0 .. visible - 1 may be listed
  int diagonal;  // kept; negative: none
  bool sink;     // block 0 is kept
  bool dense;    // all visible blocks are listed

  DSV4_HD constexpr bool keeps(int block) const {
    return block == diagonal || (sink && block == 0);
  }
  DSV4_HD constexpr int num_kept() const {
    return (sink && visible > 0 ? 1 : 0) + (diagonal >= 0 && !(sink && diagonal == 0) ? 1 : 0);
  }
};

struct RowLimits {
  int block, top_k, min_blocks, max_blocks, min_length, dense_tail;
  bool sink;
};

DSV4_HD constexpr RowRule row_rule(const RowLimits& limits, const PrefillSequence& s, int row,
                                   int prompt_length) {
  const int block = s.first_block(limits.block) + row;
  const int visible =
      row < s.num_q_blocks(limits.block) ? s.visible_blocks(limits.block, block) : 0;
  const int end = (block + 1) * limits.block, last = s.first_position + s.queries;
  const int past = end < last ? end : last;  // position after the row's last query
  return {.visible = visible,
          .diagonal = s.causal && block < visible ? block : -1,
          .sink = limits.sink,
          .dense = prompt_length < limits.min_length || past > prompt_length - limits.dense_tail};
}

// How many blocks are taken beside the kept ones: `by_mass` of `candidates`, or top_k.
DSV4_HD constexpr int num_taken(const RowLimits& limits, int kept, int candidates, int by_mass) {
  int n = limits.top_k > 0 ? limits.top_k - kept : by_mass;
  if (n > limits.max_blocks - kept) n = limits.max_blocks - kept;
  if (n < limits.min_blocks - kept) n = limits.min_blocks - kept;
  if (n < 0) n = 0;
  return n < candidates ? n : candidates;
}

inline RowLimits row_limits(const XattnSelectArgs& args) {
  return {.block = static_cast<int>(args.block),
          .top_k = static_cast<int>(args.top_k),
          .min_blocks = static_cast<int>(args.min_blocks),
          .max_blocks = static_cast<int>(args.max_blocks),
          .min_length = static_cast<int>(args.min_length),
          .dense_tail = static_cast<int>(args.dense_tail),
          .sink = args.sink};
}

}  // namespace dsv4::xattn_select_kernel
