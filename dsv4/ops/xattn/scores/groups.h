// The groups of S positions that xattn_scores.h adds up. Host and device.

#pragma once

#include "dsv4/ops/xattn/attention/prefill_batch.h"

namespace dsv4::xattn_scores_kernel {

struct Groups {
  int first_row, end_row;  // groups with a query
  int columns;             // groups 0 .. columns - 1 have a key
  bool causal;

  // Columns 0 .. n - 1 are what row r sees.
  DSV4_HD constexpr int visible(int row) const {
    if (!causal || row + 1 >= columns) return columns;
    return row < 0 ? 0 : row + 1;
  }
};

DSV4_HD constexpr Groups groups_of(const PrefillSequence& s, int stride) {
  const int past = s.first_position + s.queries;
  const int first = floor_div(s.first_position, stride);
  return {.first_row = first,
          .end_row = s.queries == 0 ? first : floor_div(past - 1, stride) + 1,
          .columns = (s.keys + stride - 1) / stride,
          .causal = s.causal};
}

}  // namespace dsv4::xattn_scores_kernel
