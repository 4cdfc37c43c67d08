#include "dsv4/comm/communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/device/peer_words.h"

namespace dsv4 {

const char* name(ExpertsPlacement placement) {
  return placement == ExpertsPlacement::kWhole ? "whole" : "sliced";
}

bool Place::operator==(const Place& other) const {
  return layer == other.layer && std::strcmp(what, other.what) == 0;
}

std::string to_string(const Place& place) {
  return place.layer < 0 ? place.what : fmt::format("{}, layer {}", place.what, place.layer);
}

ColumnEnds column_ends(int world, int64_t n, int64_t unit, int64_t factor) {
  ColumnEnds ends;
  for (int rank = 0; rank < world; ++rank)
    ends.push_back(ShardId{rank, world}.rows(n, unit).end * factor);
  return ends;
}

int Gathered::owner_of(const ColumnEnds& ends, int64_t id) {
  if (id < 0 || id >= ends.back()) return 0;
  return static_cast<int>(std::ranges::upper_bound(ends, id) - ends.begin());
}

int64_t received_bytes(const Gathered& tensor, int rank) {
  const int64_t own = tensor.ends[static_cast<size_t>(rank)] - first_column(tensor.ends, rank);
  const int64_t all = tensor.ends.back();
  return all == 0 ? 0
                  : tensor.all.bytes() / all * (all - own) +
                        tensor.all.bytes() % all * (all - own) / all;
}

void gather_runs_of_rows(Communicator& ranks, const TensorView& all, const ColumnEnds& ends,
                         const Place& place, int64_t most_bytes) {
  const int64_t values = all.numel(), width = all.dim(1);
  DSV4_CHECK(std::ssize(ends) == ranks.id().world && ends.back() == all.dim(0),
             "{}: rows up to {} of {} ranks, want {} rows of {}", to_string(place), ends.back(),
             ends.size(), all.dim(0), ranks.id().world);
  const TensorView row = all.reshape({1, values});
  const int64_t most = std::max<int64_t>(1, most_bytes / item_bytes(all.dtype));
  for (int64_t first = 0; first < values; first += most) {
    const int64_t count = std::min(most, values - first);
    ColumnEnds here;
    for (const int64_t end : ends)
      here.push_back(std::clamp<int64_t>(end * width - first, 0, count));
    const Gathered piece[] = {{row.slice(1, first, first + count), here}};
    ranks.gather(piece, place);
  }
}

PeerWords Communicator::inside(const TensorView&, const ColumnEnds&, const Place&) {
  return {};
}

void Single::gather(std::span<const Gathered>, const Place&) {
}

void Single::to_root(const TensorView&, const TensorView&, const ColumnEnds&, const Place&) {
}

void Single::gather_rows(const TensorView&, const ConstTensorView&, const Place&) {
}

}  // namespace dsv4
