// Groups are rows of S * d values: those of q with their tokens in reverse order, so that one
// product of matrices gives every antidiagonal. Threads share (sequence, head, query block).

#include "dsv4/ops/xattn/scores/xattn_scores.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/matmul.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/ops/xattn/scores/groups.h"

namespace dsv4::xattn_scores_kernel::cpu {
namespace {

struct Tile {
  std::vector<float> q, k, scores;  // [rows, S d], [columns, S d], [rows, columns]
};

// A query block of a head.
struct Item {
  int index;  // of the sequence
  PrefillSequence sequence;
  int head, kv_head, block_row;
};

class Scores {
 public:
  explicit Scores(const XattnScoresArgs& args)
      : args_(args),
        d_(args.q.dim(2)),
        s_(static_cast<int>(args.stride)),
        per_block_(static_cast<int>(args.block / args.stride)),
        k_at_(kv_address(args.k, args.page_table)) {}

  // Writes row `block_row` of the sums.
  void score(const Item& item, Tile& tile) const {
    const int64_t blocks = args_.sums.dim(3);
    float* sums =
        args_.sums.as<float>() +
        ((item.index * args_.sums.dim(1) + item.head) * args_.sums.dim(2) + item.block_row) *
            blocks;
    std::fill_n(sums, blocks, 0.f);
    const Groups groups = groups_of(item.sequence, s_);
    const int block = item.sequence.first_block(static_cast<int>(args_.block)) + item.block_row;
    const int first = std::max(block * per_block_, groups.first_row);
    const int end = std::min((block + 1) * per_block_, groups.end_row);
    if (first >= end || groups.visible(end - 1) == 0) return;
    const int64_t rows = end - first, columns = groups.visible(end - 1), width = s_ * d_;
    load_queries(item, first, end, tile.q);
    load_keys(item, columns, tile.k);
    tile.scores.resize(static_cast<size_t>(rows * columns));
    dsv4::cpu::matmul_abt({tile.q.data(), rows, width, width},
                          {tile.k.data(), columns, width, width},
                          {tile.scores.data(), rows, columns, columns});
    for (int r = first; r < end; ++r) {
      add_row(tile.scores.data() + (r - first) * columns, groups.visible(r), sums);
    }
  }

 private:
  void load_queries(const Item& item, int first, int end, std::vector<float>& to) const {
    const PrefillSequence& s = item.sequence;
    to.assign(static_cast<size_t>((end - first) * s_ * d_), 0.f);
    for (int position = first * s_; position < end * s_; ++position) {
      const int query = position - s.first_position;
      if (query < 0 || query >= s.queries) continue;
      const int group = floor_div(position, s_) - first, token = position - (first + group) * s_;
      dsv4::cpu::load(args_.q,
                      (s.first_q + query) * args_.q.stride[0] + item.head * args_.q.stride[1], d_,
                      to.data() + (group * s_ + s_ - 1 - token) * d_);
    }
  }

  void load_keys(const Item& item, int64_t columns, std::vector<float>& to) const {
    to.assign(static_cast<size_t>(columns * s_ * d_), 0.f);
    const auto keys = std::min<int64_t>(item.sequence.keys, columns * s_);
    for (int j = 0; j < keys; ++j) {
      dsv4::cpu::load(args_.k, k_at_(item.index, item.sequence.first_kv, j, item.kv_head), d_,
                      to.data() + j * d_);
    }
  }

  // Softmax of `n` scores, added up by block.
  void add_row(float* scores, int n, float* sums) const {
    if (n == 0) return;
    const float scale = args_.scale / static_cast<float>(s_);
    const float largest = *std::max_element(scores, scores + n);
    float total = 0;
    for (int c = 0; c < n; ++c) total += scores[c] = std::exp((scores[c] - largest) * scale);
    for (int c = 0; c < n; c += per_block_) {
      float sum = 0;
      for (int i = c; i < std::min(c + per_block_, n); ++i) sum += scores[i];
      sums[c / per_block_] += sum / total;
    }
  }

  const XattnScoresArgs& args_;
  int64_t d_;
  int s_, per_block_;
  KvAddress k_at_;
};

}  // namespace

void run(const Context&, const XattnScoresArgs& args) {
  check_lengths(args.batch, args.q.dim(0), args.page_table.empty() ? args.k.dim(0) : -1);
  const Scores scores(args);
  const int64_t heads = args.q.dim(1), rows = args.sums.dim(2);
  const int block = static_cast<int>(args.block);
  const int *cu_q = args.batch.cu_q.as<int>(), *cu_kv = args.batch.cu_kv.as<int>();
  for (int i = 0; i < args.batch.size(); ++i) {
    const PrefillSequence s = prefill_sequence(cu_q, cu_kv, i, args.batch.causal);
    DSV4_CHECK(s.num_q_blocks(block) <= rows && s.num_k_blocks(block) <= args.sums.dim(3),
               "sequence {} has {} query and {} key blocks, sums {}", i, s.num_q_blocks(block),
               s.num_k_blocks(block), to_string(args.sums));
  }
  const int group = static_cast<int>(heads / args.k.dim(-2));
  const double flops = xattn_scores.cost(args).flops;
#pragma omp parallel if (dsv4::cpu::worth_sharing(static_cast <int64_t>(flops)))
  {
    Tile tile;
#pragma omp for schedule(dynamic)
    for (int64_t at = 0; at < args.batch.size() * heads * rows; ++at) {
      const int index = static_cast<int>(at / rows / heads);
      const int head = static_cast<int>(at / rows % heads);
      scores.score({.index = index,
                    .sequence = prefill_sequence(cu_q, cu_kv, index, args.batch.causal),
                    .head = head,
                    .kv_head = head / group,
                    .block_row = static_cast<int>(at % rows)},
                   tile);
    }
  }
}

}  // namespace dsv4::xattn_scores_kernel::cpu
