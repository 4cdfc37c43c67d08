#include "dsv4/ops/gemm/cuda/grouped.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/cuda/list_tiles.cuh"

namespace dsv4::gemm::cuda {
namespace {

// Matrices that one launch can take: equal format, and all in whole units or all not.
struct Kind {
  WeightFormat format;
  int bits;
  bool scale_is_f32, whole;

  bool operator==(const Kind&) const = default;
};

Problem with_weight(const Problem& problem, const StridedWeight& weight) {
  Problem p = problem;
  p.weight[0] = weight;
  return p;
}

Kind kind_of(const Problem& problem, const StridedWeight& w) {
  return {w.format, w.bits, w.scale_is_f32, in_whole_units(with_weight(problem, w))};
}

MatrixPlace place_of(const StridedWeight& w) {
  return {.data = w.data,
          .scale = w.scale,
          .codebook = w.codebook,
          .row_bytes = w.row_bytes,
          .scale_row_bytes = w.scale_row_bytes,
          .scale2 = w.scale2};
}

// What all matrices of a kind have in common; the rest comes from places. A kind that is not in
// whole units keeps the address of a matrix that is not.
StridedWeight common_weight(StridedWeight first, const MatrixPlace* places) {
  first.scale2s = nullptr;
  first.places = places;
  return first;
}

struct Listed {
  StridedWeight first;
  MatrixList list;
};

int tile_of(Device& device, const Problem& problem, int64_t matrices, Kernels kernels) {
  return kernels == Kernels::kMma ? mma_tile(device, problem, matrices)
                                  : gemv_tile(device, problem, matrices);
}

void run_listed(Device& device, const Problem& problem, const Listed& listed,
                const int32_t* offsets, int64_t matrices, Kernels kernels) {
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  Problem p = problem;
  p.tile_m = tile_of(device, with_weight(problem, listed.first), matrices, kernels);
  // Every tile has a row, and all tiles of a matrix but one are full.
  const int64_t rows = problem.m, count = listed.list.count;
  p.max_tiles = std::min(rows, std::min(count, rows) + rows / p.tile_m);
  const auto take = [&](int64_t bytes) { return scratch.take(DType::kU8, {bytes}).data; };
  const TileList to{
      .places = reinterpret_cast<MatrixPlace*>(take(count * int64_t{sizeof(MatrixPlace)})),
      .tiles = reinterpret_cast<RowTile*>(take(p.max_tiles * int64_t{sizeof(RowTile)})),
      .num_tiles = reinterpret_cast<int32_t*>(take(sizeof(int32_t)))};
  launch(device, "list_tiles", list_tiles_kernel, {.block = kSelectThreads, .pdl = true},
         listed.list, offsets, p.tile_m, to);
  p.weight[0] = common_weight(listed.first, to.places);
  p.tiles = to.tiles, p.num_tiles = to.num_tiles;
  kernels == Kernels::kMma ? run_mma(device, p) : run_gemv(device, p);
}

}  // namespace

void run_grouped(Device& device, const Problem& problem, std::span<const WeightView> weights,
                 const int32_t* offsets, Kernels kernels) {
  if (problem.m == 0 || problem.n == 0) return;
  std::vector<Kind> kinds;
  for (const WeightView& w : weights) kinds.push_back(kind_of(problem, single_matrix(w)));
  std::vector<bool> done(weights.size());
  for (size_t first = 0; first < weights.size(); ++first) {
    if (done[first]) continue;
    const auto listed = std::make_unique<Listed>();
    listed->first = single_matrix(weights[first]);
    listed->list.count = 0;
    for (size_t i = first; i < weights.size() && listed->list.count < kListed; ++i) {
      if (done[i] || !(kinds[i] == kinds[first])) continue;
      done[i] = true;
      listed->list.place[listed->list.count] = place_of(single_matrix(weights[i]));
      listed->list.index[listed->list.count++] = static_cast<int32_t>(i);
    }
    run_listed(device, problem, *listed, offsets, std::ssize(weights), kernels);
  }
}

const char* reject_grouped_mma(const Problem& problem, std::span<const WeightView> weights) {
  for (const WeightView& w : weights)
    if (const char* why = reject_mma(with_weight(problem, single_matrix(w)))) return why;
  return nullptr;
}

}  // namespace dsv4::gemm::cuda
