// What an engine's steps have done with experts that are in host memory, since it began
// (docs/experts-in-host-memory.md).
//
// An expert that a decode step chose counts once in that step, however many tokens chose it. It is
// a hit, or a miss: moved to a place, or read at home for want of one. Prompts' steps stream whole
// layers and count bytes alone.

#pragma once

#include <cstdint>
#include <vector>

namespace dsv4 {

// They are those of one layer, or of several.
struct ExpertCounts {
  int64_t hits = 0, moves = 0, read_at_home = 0;
  int64_t impossible = 0;                   // decode steps with ids of no expert
  int64_t moved_bytes = 0, home_bytes = 0;  // over the link, for moves and for read_at_home

  int64_t misses() const { return moves + read_at_home; }
  int64_t link_bytes() const { return moved_bytes + home_bytes; }
  // 0 where nothing was chosen.
  double hit_rate() const;
  ExpertCounts& operator+=(const ExpertCounts& other);
  ExpertCounts& operator-=(const ExpertCounts& other);
};

struct ExpertStats {
  std::vector<ExpertCounts> layers;  // of decode steps; empty: no experts are in host memory
  int64_t prompt_steps = 0;          // that streamed layers
  int64_t prompt_bytes = 0;          // copied by them

  bool any() const { return !layers.empty(); }
  ExpertCounts sum() const;
  // What was done since `before`, which is empty or of the same model.
  ExpertStats since(const ExpertStats& before) const;
};

}  // namespace dsv4
