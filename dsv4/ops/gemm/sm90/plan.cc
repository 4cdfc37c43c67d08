#include "dsv4/ops/gemm/sm90/plan.h"

#include <algorithm>

#include "dsv4/device/sm90/limits.h"

namespace dsv4::gemm {
namespace {

constexpr int kMinStages = 4, kMinStagesOfF16 = 3;  // the latter: with activations in f16
// Shared memory of a CTA when three, two or one of them fit on an SM (228 KB, 1 KB reserved each).
constexpr int kShared[] = {75 << 10, 113 << 10, sm90::kMaxSmem};
constexpr int kSms = 132;          // for the number of ranks, whatever the GPU
constexpr int kRankXBytes = 2048;  // of a token's activations in one rank, preferred
// Rows of at most this many slabs stay whole where that gives about a CTA to every SM: the kernel
// of queries adds up whole rows too (attention_in/sm90_few), so both have the same bits.
constexpr int kWholeSlabs = 8, kWholeKbitSlabs = 4, kManyTiles = 128;

int slabs_of(const Shape& shape) {
  return static_cast<int>(ceil_div(shape.k, int64_t{slab_columns(shape.format)}));
}

// See Shape::by_columns.
int rank_bits_of_columns(int64_t k) {
  return k <= 1024 ? 0 : k <= 4096 ? 2 : 3;
}

// `tiles` may count those of another format, too. A run of tiles that a cluster has as a whole
// counts as one in a pair of formats.
int rank_bits_of(const Shape& shape, int64_t tiles) {
  // x of bit planes counts without the zeros between blocks.
  const bool kbit = bits_of(shape.format) > 0;
  const int slabs = slabs_of(shape),
            x_bytes = kbit ? slab_columns(shape.format) * (converts_to_f16(shape.format) ? 2 : 1)
                           : x_boxes(shape.format) * kSlabBytes;
  int bits = 0;
  if (shape.by_columns) return rank_bits_of_columns(shape.k);
  if (slabs <= (kbit ? kWholeKbitSlabs : kWholeSlabs) && tiles >= kManyTiles) return bits;
  while (2 << bits <= kMaxRanks && 2 << bits <= slabs &&
         (tiles << (bits + 1) <= shape.ctas_per_sm * kSms ||
          ceil_div(slabs, int64_t{1} << bits) * x_bytes > kRankXBytes))
    ++bits;
  return bits;
}

int slabs_of_rank(const Shape& shape, int rank_bits) {
  return static_cast<int>(ceil_div(slabs_of(shape), int64_t{1} << rank_bits));
}

// Clusters of CTAs that are alone on their SMs do not reach every SM of an H200: a GPC has whole
// clusters (cudaOccupancyMaxActiveClusters()).
int64_t resident_clusters(int ctas_per_sm, int rank_bits, int num_sms) {
  constexpr int kAlone[] = {132, 66, 30, 15};  // of 1, 2, 4, 8 CTAs on kSms SMs
  if (ctas_per_sm == 1) return std::max(1, kAlone[rank_bits] * num_sms / kSms);
  return std::max(1, ctas_per_sm * num_sms >> rank_bits);
}

// As few as one wave allows; a group has whole clusters.
int tiles_per_cluster(const Shape& shape, int ctas_per_sm, int rank_bits, int num_sms) {
  const int64_t unit = shape.tiles_of_cluster,
                resident = resident_clusters(ctas_per_sm, rank_bits, num_sms);
  int64_t units = std::max<int64_t>(1, ceil_div(ceil_div(shape.tiles, unit), resident));
  while (units > 1 && shape.tiles_per_group < shape.tiles &&
         shape.tiles_per_group % (units * unit) != 0)
    --units;
  return static_cast<int>(units * unit);
}

Split make_split(const Shape& shape, int rank_bits, int tiles_of_cluster) {
  Split split{.rank_bits = rank_bits,
              .slabs = slabs_of(shape),
              .tiles = static_cast<int>(shape.tiles),
              .tiles_per_group = static_cast<int>(shape.tiles_per_group),
              .tiles_per_cluster = tiles_of_cluster,
              .prologue_bytes = shape.prologue_bytes};
  const int tokens = tile_tokens(shape);
  const bool f16 = streams_x(tokens) && converts_to_f16(shape.format);
  const int least = f16 ? kMinStagesOfF16 : kMinStages;
  for (const int limit : kShared) {
    for (split.stages = kMaxStages; split.stages >= least; --split.stages)
      if (Layout(shape.format, tokens, split).bytes <= limit) return split;
  }
  split.stages = least;
  return split;
}

}  // namespace

const char* reject(const Shape& shape) {
  const int slabs = slabs_of_rank(shape, rank_bits_of(shape, shape.tiles));
  const int x_bytes = slab_groups(shape.format) * x_boxes(shape.format) * kSlabBytes;
  if (slabs > kMaxRankSlabs ||
      slabs * x_bytes * tile_tokens(shape.format, kResidentTokens, false) > kMaxXBytes)
    return "rows are too long";
  return nullptr;
}

// With the activations of many tokens only one CTA may fit on an SM: its cluster has more tiles, so
// that they are one wave, too.
Split make_split(const Shape& shape, int num_sms) {
  const int bits = rank_bits_of(shape, shape.tiles);
  const Split split =
      make_split(shape, bits, tiles_per_cluster(shape, shape.ctas_per_sm, bits, num_sms));
  if (Layout(shape.format, tile_tokens(shape), split).bytes <= kShared[1]) return split;
  return make_split(shape, bits, tiles_per_cluster(shape, 1, bits, num_sms));
}

TwoSplits make_two_splits(const Shape& q8, const Shape& bf16, int num_sms) {
  const auto units_of = [](const Shape& s) { return ceil_div(s.tiles, s.tiles_of_cluster); };
  const int64_t units = units_of(q8) + units_of(bf16);
  const Shape& widest = bf16.tiles > 0 ? bf16 : q8;
  int bits = rank_bits_of(widest, units);
  while (1 << bits > std::max(1, slabs_of(q8))) --bits;  // every rank has slabs of both
  const int64_t each =
      std::max<int64_t>(1, ceil_div(units, resident_clusters(widest.ctas_per_sm, bits, num_sms)));
  return {make_split(q8, bits, static_cast<int>(each * q8.tiles_of_cluster)),
          make_split(bf16, bits, static_cast<int>(each * bf16.tiles_of_cluster))};
}

}  // namespace dsv4::gemm
