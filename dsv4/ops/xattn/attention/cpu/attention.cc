// One query block of one head at a time: its listed key blocks in ascending order, with the running
// maximum and sum of every query (online softmax). Threads share (sequence, query block, head).

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/matmul.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/float16.h"

namespace dsv4::block_sparse_attention_kernel::cpu {
namespace {

using dsv4::cpu::Matrix;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float round_to(DType dtype, float x) {
  if (dtype == DType::kBF16) return round_to_bf16(x);
  return dtype == DType::kF16 ? f16_to_f32(f32_to_f16(x)) : x;
}

// Buffers of a thread.
struct Tile {
  std::vector<float> q, k, v;      // [queries, d], [keys, d], [keys, d_v]
  std::vector<float> p, out, sum;  // [queries, keys], [queries, d_v], [queries, d_v] of a block
  std::vector<float> largest, total;
};

float* sized(std::vector<float>& buffer, int64_t n) {
  buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

// A query block: positions begin .. end - 1 of a head of a sequence.
struct Item {
  int index;  // of the sequence
  PrefillSequence sequence;
  int head, kv_head, block_row;
  int begin, end;

  int64_t q_row(int position) const {
    return sequence.first_q + position - sequence.first_position;
  }
};

class Attention {
 public:
  Attention(const Context& context, const BlockSparseAttentionArgs& args)
      : args_(args),
        d_(args.q.dim(2)),
        d_v_(args.v.dim(-1)),
        block_(static_cast<int>(args.block)),
        p_dtype_(context.numerics == Numerics::kOfficial ? args.v.dtype : DType::kF32),
        k_at_(kv_address(args.k, args.page_table)),
        v_at_(kv_address(args.v, args.page_table)) {}

  void attend(const Item& item, Tile& tile) const {
    const int n = item.end - item.begin;
    float* q = sized(tile.q, n * d_);
    for (int i = 0; i < n; ++i) {
      dsv4::cpu::load(args_.q, q_offset(args_.q, item, i), d_, q + i * d_);
    }
    std::fill_n(sized(tile.out, n * d_v_), n * d_v_, 0.f);
    std::fill_n(sized(tile.largest, n), n, -kInfinity);
    std::fill_n(sized(tile.total, n), n, 0.f);
    for_each_block(item, [&](int k_block) { add_block(item, k_block, tile); });
    for (int i = 0; i < n; ++i) store(item, i, tile);
  }

 private:
  static int64_t q_offset(const TensorMeta& meta, const Item& item, int i) {
    return item.q_row(item.begin + i) * meta.stride[0] + item.head * meta.stride[1];
  }

  template <class Visit>
  void for_each_block(const Item& item, const Visit& visit) const {
    const int visible =
        item.sequence.visible_blocks(block_, item.sequence.first_block(block_) + item.block_row);
    if (args_.lists.empty()) {
      for (int j = 0; j < visible; ++j) visit(j);
      return;
    }
    const int64_t row =
        (item.index * args_.q.dim(1) + item.head) * args_.lists.counts.dim(2) + item.block_row;
    const int64_t slots = args_.lists.indices.dim(3);
    const int count = args_.lists.counts.as<int>()[row];
    DSV4_CHECK(0 <= count && count <= slots, "counts[{}, {}, {}] is {} of {} slots", item.index,
               item.head, item.block_row, count, slots);
    const int* list = args_.lists.indices.as<int>() + row * slots;
    for (int i = 0, before = -1; i < count; before = list[i], ++i) {
      DSV4_CHECK(list[i] > before, "indices[{}, {}, {}, {}] is {} after {}: not ascending",
                 item.index, item.head, item.block_row, i, list[i], before);
      if (list[i] < visible) visit(list[i]);
    }
  }

  void add_block(const Item& item, int k_block, Tile& tile) const {
    const int first = k_block * block_, n = item.end - item.begin;
    const int m = std::min(block_, item.sequence.keys - first);
    float *k = sized(tile.k, m * d_), *v = sized(tile.v, m * d_v_);
    for (int j = 0; j < m; ++j) {
      const int first_kv = item.sequence.first_kv;
      dsv4::cpu::load(args_.k, k_at_(item.index, first_kv, first + j, item.kv_head), d_,
                      k + j * d_);
      dsv4::cpu::load(args_.v, v_at_(item.index, first_kv, first + j, item.kv_head), d_v_,
                      v + j * d_v_);
    }
    float *p = sized(tile.p, int64_t{n} * m), *sum = sized(tile.sum, n * d_v_);
    dsv4::cpu::matmul_abt({tile.q.data(), n, d_, d_}, {k, m, d_, d_}, {p, n, m, m});
    for (int i = 0; i < n; ++i) {
      const int seen = args_.batch.causal ? item.begin + i + 1 - first : m;
      softmax(i, p + int64_t{i} * m, m, std::clamp(seen, 0, m), tile);
    }
    dsv4::cpu::matmul_ab({p, n, m, m}, {v, m, d_v_, d_v_}, {sum, n, d_v_, d_v_});
    dsv4::cpu::axpy(1.f, sum, tile.out.data(), n * d_v_);
  }

  // p: the dots of query i, of which the first `seen` count -> exponentials; what was summed before
  // is rescaled.
  void softmax(int i, float* p, int m, int seen, Tile& tile) const {
    float& largest = tile.largest[static_cast<size_t>(i)];
    float& total = tile.total[static_cast<size_t>(i)];
    float now = largest;
    for (int j = 0; j < seen; ++j) now = std::max(now, p[j] * args_.scale);
    std::fill(p + seen, p + m, 0.f);
    if (now == -kInfinity) return;
    const float rescale = std::exp(largest - now);
    largest = now;
    total *= rescale;
    float* out = tile.out.data() + i * d_v_;
    dsv4::cpu::scale(rescale, out, out, d_v_);
    for (int j = 0; j < seen; ++j) {
      const float e = std::exp(p[j] * args_.scale - now);
      total += e;
      p[j] = round_to(p_dtype_, e);
    }
  }

  void store(const Item& item, int i, Tile& tile) const {
    const float total = tile.total[static_cast<size_t>(i)];
    float* out = tile.out.data() + i * d_v_;
    dsv4::cpu::scale(total > 0 ? 1.f / total : 0.f, out, out, d_v_);
    dsv4::cpu::store(args_.out, q_offset(args_.out, item, i), d_v_, out);
    if (args_.lse.empty()) return;
    args_.lse.as<float>()[item.head * args_.lse.stride[0] + item.q_row(item.begin + i)] =
        total > 0 ? tile.largest[static_cast<size_t>(i)] + std::log(total) : -kInfinity;
  }

  const BlockSparseAttentionArgs& args_;
  int64_t d_, d_v_;
  int block_;
  DType p_dtype_;
  KvAddress k_at_, v_at_;
};

// Query blocks of one sequence, without heads.
std::vector<Item> items_of(const BlockSparseAttentionArgs& args) {
  const int block = static_cast<int>(args.block);
  std::vector<Item> items;
  for (int i = 0; i < args.batch.size(); ++i) {
    const PrefillSequence s = prefill_sequence(args.batch.cu_q.as<int>(),
                                               args.batch.cu_kv.as<int>(), i, args.batch.causal);
    const int rows = s.num_q_blocks(block);
    DSV4_CHECK(args.lists.empty() || rows <= args.lists.counts.dim(2),
               "sequence {} has {} query blocks, counts {}", i, rows, args.lists.counts.dim(2));
    for (int r = 0; r < rows; ++r) {
      const int first = (s.first_block(block) + r) * block;
      items.push_back({.index = i,
                       .sequence = s,
                       .head = 0,
                       .kv_head = 0,
                       .block_row = r,
                       .begin = std::max(first, s.first_position),
                       .end = std::min(first + block, s.first_position + s.queries)});
    }
  }
  return items;
}

}  // namespace

void run(const Context& context, const BlockSparseAttentionArgs& args) {
  check_lengths(args.batch, args.q.dim(0), args.page_table.empty() ? args.k.dim(0) : -1);
  const Attention attention(context, args);
  const std::vector<Item> items = items_of(args);
  const auto heads = static_cast<int>(args.q.dim(1));
  const int group = heads / static_cast<int>(args.k.dim(-2));
  const int64_t n = static_cast<int64_t>(items.size()) * heads;
  const double flops = block_sparse_attention.cost(args).flops;
  std::exception_ptr error;  // what a list says may be wrong
#pragma omp parallel if (dsv4::cpu::worth_sharing(static_cast <int64_t>(flops)))
  {
    Tile tile;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < n; ++i) {
      Item item = items[static_cast<size_t>(i / heads)];
      item.head = static_cast<int>(i % heads);
      item.kv_head = item.head / group;
      try {
        attention.attend(item, tile);
      } catch (...) {
#pragma omp critical
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace dsv4::block_sparse_attention_kernel::cpu
