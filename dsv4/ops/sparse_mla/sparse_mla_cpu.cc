// Per query: every listed row is decoded once into f32 [n, d], then tiles of heads run
//
//   Z = Q K^T,  P = softmax weights of Z,  O = P K
//
// Work is split over queries when there are enough of them, else over rows and head tiles of one
// query. Nothing of the arithmetic depends on the split.

#include "dsv4/ops/sparse_mla/sparse_mla_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/sparse_mla/sparse_mla_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float LargestOf(const float* z, int64_t n) {
  const hn::ScalableTag<float> f32;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  auto largest = hn::Set(f32, z[0]);
  int64_t j = 0;
  for (; j + step <= n; j += step) largest = hn::Max(largest, hn::LoadU(f32, z + j));
  float result = hn::GetLane(hn::MaxOfLanes(f32, largest));
  for (; j < n; ++j) result = z[j] > result ? z[j] : result;
  return result;
}

// One vector of exponentials from z[j]: written back as weights, returned unrounded for the sum.
template <class D>
HWY_INLINE hn::Vec<D> Exponentials(D d, float scale, float largest, bool round, float* z) {
  const auto logit = hn::Mul(hn::Set(d, scale), hn::LoadU(d, z));
  const auto e = cpu::HWY_NAMESPACE::ExpNonPositive(d, hn::Sub(logit, hn::Set(d, largest)));
  hn::StoreU(round ? cpu::HWY_NAMESPACE::RoundToBf16(d, e) : e, d, z);
  return e;
}

// z: [n] dots in, weights out. Returns the sum of the unrounded weights.
float SoftmaxWeights(float scale, float largest, bool round, float* z, int64_t n) {
  const hn::ScalableTag<float> f32;
  const hn::CappedTag<float, 1> one;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  auto sums = hn::Zero(f32);
  int64_t j = 0;
  for (; j + step <= n; j += step) {
    sums = hn::Add(sums, Exponentials(f32, scale, largest, round, z + j));
  }
  float sum = hn::GetLane(hn::SumOfLanes(f32, sums));
  for (; j < n; ++j) sum += hn::GetLane(Exponentials(one, scale, largest, round, z + j));
  return sum;
}

}  // namespace dsv4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/cpu/matmul.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"

namespace dsv4 {

HWY_EXPORT(LargestOf);
HWY_EXPORT(SoftmaxWeights);

namespace {

constexpr int64_t kHeadTile = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct KvRow {
  const KvPool* pool;
  int64_t row;
};

// The rows of one query, decoded.
struct Keys {
  std::vector<KvRow> rows;
  std::vector<float> values;  // [rows, d]
};

int64_t length(const KvList& list) {
  return list.rows.rank == 0 ? 0 : list.rows.dim(1);
}

void append_rows(const KvList& list, int64_t query, std::vector<KvRow>& rows) {
  const int64_t n = length(list);
  const int32_t* ids = n == 0 ? nullptr : list.rows.row<int32_t>(query);
  for (int64_t j = 0; j < n; ++j) {
    if (ids[j] >= 0) rows.push_back({&list.pool, ids[j]});
  }
}

// load_row() of pools.h, vectorised. x: [width]
void decode_row(const KvPool& pool, int64_t row, float* x) {
  const int64_t entries = pool.page_entries, page = row / entries, entry = row % entries;
  const KvLayout& layout = pool.layout;
  if (!pool.packed()) {
    const float* values = pool.pages.row<float>(page) + entry * layout.width();
    std::copy_n(values, layout.width(), x);
    return;
  }
  const uint8_t* base = pool.pages.row<uint8_t>(page);
  const uint8_t* codes = base + layout.entry_offset(entry);
  const uint8_t* scales = base + layout.scale_offset(entries, entry);
  for (int g = 0; g < layout.num_scales(); ++g) {
    const int first = g * KvLayout::kGroup;
    cpu::decode_e4m3(codes + first, ue8m0_to_f32(scales[g]), x + first, KvLayout::kGroup);
  }
  const auto* rope = reinterpret_cast<const uint16_t*>(codes + layout.nope);
  cpu::widen_bf16(rope, x + layout.nope, layout.rope);
}

void load_keys(const SparseMlaArgs& args, int64_t query, Keys& keys) {
  const int64_t d = args.q.dim(2);
  keys.rows.clear();
  append_rows(args.window, query, keys.rows);
  append_rows(args.compressed, query, keys.rows);
  const auto n = static_cast<int64_t>(keys.rows.size());
  keys.values.resize(static_cast<size_t>(n * d));
  float* values = keys.values.data();
#pragma omp parallel for if (n * d > 32768)
  for (int64_t j = 0; j < n; ++j) {
    const KvRow& row = keys.rows[static_cast<size_t>(j)];
    decode_row(*row.pool, row.row, values + j * d);
  }
}

// Softmax of one head over its dots z [n], which become weights; the factor that finishes its sum.
float finish_head(const Context& context, const SparseMlaArgs& args, int64_t query, int64_t head,
                  float* z, int64_t n) {
  float largest = -kInfinity, sum = 0.f;
  if (n > 0) {
    largest = args.scale * HWY_DYNAMIC_DISPATCH(LargestOf)(z, n);
    const bool round = context.numerics == Numerics::kOfficial;
    sum = HWY_DYNAMIC_DISPATCH(SoftmaxWeights)(args.scale, largest, round, z, n);
  }
  if (!args.lse.empty()) {
    args.lse.row<float>(query)[head] = n > 0 ? largest + std::log(sum) : kInfinity;
  }
  if (n > 0 && !args.sink.empty()) sum += std::exp(args.sink.as<float>()[head] - largest);
  return n > 0 ? 1.f / sum : 0.f;
}

int64_t head_offset(const TensorMeta& meta, int64_t query, int64_t head) {
  return query * meta.stride[0] + head * meta.stride[1];
}

// Heads [begin, end) of one query, at most kHeadTile.
void attend(const Context& context, const SparseMlaArgs& args, int64_t query, int64_t begin,
            int64_t end, const Keys& keys) {
  const auto n = static_cast<int64_t>(keys.rows.size());
  const int64_t d = args.q.dim(2), heads = end - begin;
  // Kept by the thread: a tile of a small model takes a few microseconds.
  thread_local std::vector<float> q, z, out;
  q.resize(static_cast<size_t>(heads * d));
  z.resize(static_cast<size_t>(heads * n));
  out.resize(static_cast<size_t>(heads * d));

  for (int64_t i = 0; i < heads; ++i) {
    cpu::load(args.q, head_offset(args.q, query, begin + i), d, q.data() + i * d);
  }
  const cpu::Matrix<const float> k{keys.values.data(), n, d, d};
  cpu::matmul_abt({q.data(), heads, d, d}, k, {z.data(), heads, n, n});
  float factor[kHeadTile];
  for (int64_t i = 0; i < heads; ++i) {
    factor[i] = finish_head(context, args, query, begin + i, z.data() + i * n, n);
  }
  cpu::matmul_ab({z.data(), heads, n, n}, k, {out.data(), heads, d, d});
  for (int64_t i = 0; i < heads; ++i) {
    float* head = out.data() + i * d;
    cpu::scale(factor[i], head, head, d);
    cpu::store(args.out, head_offset(args.out, query, begin + i), d, head);
  }
}

}  // namespace

void sparse_mla_cpu(const Context& context, const SparseMlaArgs& args) {
  const int64_t queries = args.q.dim(0), heads = args.q.dim(1);
  for (const KvList* list : {&args.window, &args.compressed}) {
    if (queries == 0 || length(*list) == 0) continue;
    check_row_ids(list == &args.window ? "window" : "compressed", list->rows,
                  list->pool.num_rows());
  }
  // With few queries the outer region has one thread and the inner ones have them all.
#pragma omp parallel if (queries >= omp_get_max_threads())
  {
    Keys keys;
#pragma omp for schedule(dynamic)
    for (int64_t query = 0; query < queries; ++query) {
      load_keys(args, query, keys);
#pragma omp parallel for schedule(dynamic) if (heads > kHeadTile)
      for (int64_t begin = 0; begin < heads; begin += kHeadTile) {
        attend(context, args, query, begin, std::min(begin + kHeadTile, heads), keys);
      }
    }
  }
}

}  // namespace dsv4
#endif  // HWY_ONCE
