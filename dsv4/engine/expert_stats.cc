#include "dsv4/engine/expert_stats.h"

#include "dsv4/base/error.h"

namespace dsv4 {

double ExpertCounts::hit_rate() const {
  const int64_t chosen = hits + misses();
  return chosen == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(chosen);
}

ExpertCounts& ExpertCounts::operator+=(const ExpertCounts& other) {
  hits += other.hits, moves += other.moves, read_at_home += other.read_at_home;
  impossible += other.impossible;
  moved_bytes += other.moved_bytes, home_bytes += other.home_bytes;
  return *this;
}

ExpertCounts& ExpertCounts::operator-=(const ExpertCounts& other) {
  hits -= other.hits, moves -= other.moves, read_at_home -= other.read_at_home;
  impossible -= other.impossible;
  moved_bytes -= other.moved_bytes, home_bytes -= other.home_bytes;
  return *this;
}

ExpertCounts ExpertStats::sum() const {
  ExpertCounts all;
  for (const ExpertCounts& layer : layers) all += layer;
  return all;
}

ExpertStats ExpertStats::since(const ExpertStats& before) const {
  DSV4_CHECK(before.layers.empty() || before.layers.size() == layers.size(),
             "counts of {} layers, and of {} before", layers.size(), before.layers.size());
  ExpertStats between = *this;
  for (size_t l = 0; l < before.layers.size(); ++l) between.layers[l] -= before.layers[l];
  between.prompt_steps -= before.prompt_steps;
  between.prompt_bytes -= before.prompt_bytes;
  return between;
}

}  // namespace dsv4
