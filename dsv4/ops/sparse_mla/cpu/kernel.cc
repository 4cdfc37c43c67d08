// Per query: every listed row is decoded once into f32 [n, d], then tiles of heads run
//
//   Z = Q K^T,  P = softmax weights of Z,  O = P K
//
// Work is split over queries when there are enough of them, else over rows and head tiles of one
// query. Nothing of the arithmetic depends on the split.

#include "dsv4/ops/sparse_mla/implementations.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/sparse_mla/cpu/kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/base/error.h"
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
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/ops/sparse_mla/by_request.h"

namespace dsv4 {

HWY_EXPORT(LargestOf);
HWY_EXPORT(SoftmaxWeights);

namespace {

constexpr int64_t kMaxHeadTile = 8;
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

// Slots of the list that the queries of a request look at.
int64_t length(const KvList& list, int64_t request) {
  const int64_t n = topk_of(list);
  if (list.lengths.empty()) return n;
  return std::clamp<int64_t>(list.lengths.as<int32_t>()[request], 0, n);
}

// Ids of one query: slot of a request, in the form of by_request().
const int32_t* ids_of(const KvList& list, int64_t request, int64_t slot) {
  return list.rows.as<int32_t>() + request * list.rows.stride[0] + slot * list.rows.stride[1];
}

void check_ids(const char* name, const KvList& list, int64_t requests, int64_t s_q) {
  for (int64_t query = 0; query < requests * s_q; ++query) {
    const int64_t n = length(list, query / s_q);
    const int32_t* ids = n == 0 ? nullptr : ids_of(list, query / s_q, query % s_q);
    for (int64_t j = 0; j < n; ++j) {
      DSV4_CHECK(ids[j] < list.pool.num_rows(), "{}[{}, {}] is row {} of a pool of {}", name, query,
                 j, ids[j], list.pool.num_rows());
    }
  }
}

void append_rows(const KvList& list, int64_t request, int64_t slot, std::vector<KvRow>& rows) {
  const int64_t n = length(list, request);
  const int32_t* ids = n == 0 ? nullptr : ids_of(list, request, slot);
  for (int64_t j = 0; j < n; ++j) {
    if (ids[j] >= 0) rows.push_back({&list.pool, ids[j]});
  }
}

// load_row() of pools.h, vectorised. x: [width]
void decode_row(const KvPool& pool, int64_t row, float* x) {
  const int64_t entries = pool.page_entries, page = row / entries, entry = row % entries;
  const KvLayout& layout = pool.layout;
  if (!pool.packed()) {
    const int64_t first = page * pool.pages.row_stride() + entry * layout.width();
    return cpu::load(pool.pages, first, layout.width(), x);
  }
  const uint8_t* base = pool.pages.row<uint8_t>(page);
  const uint8_t* codes = base + layout.entry_offset(entry);
  const uint8_t* scales = base + layout.scale_offset(entries, entry);
  const int group = layout.group();
  for (int g = 0; g < layout.num_scales(); ++g) {
    cpu::decode_e4m3(codes + g * group, kv_scale(layout, scales, g), x + g * group, group);
  }
  const auto* rope = reinterpret_cast<const uint16_t*>(base + layout.rope_offset(entry));
  cpu::widen_bf16(rope, x + layout.nope, layout.rope);
}

void load_keys(const SparseMlaArgs& args, int64_t request, int64_t slot, Keys& keys) {
  const int64_t d = args.q.dim(3);
  keys.rows.clear();
  append_rows(args.window, request, slot, keys.rows);
  append_rows(args.compressed, request, slot, keys.rows);
  const auto n = static_cast<int64_t>(keys.rows.size());
  keys.values.resize(static_cast<size_t>(n * d));
  float* values = keys.values.data();
#pragma omp parallel for if (cpu::worth_sharing(4 * n * d))
  for (int64_t j = 0; j < n; ++j) {
    const KvRow& row = keys.rows[static_cast<size_t>(j)];
    decode_row(*row.pool, row.row, values + j * d);
  }
}

// A query and a range of its heads.
struct Part {
  int64_t request, slot, begin, end;
};

// lse or max_logits; the view may be empty.
void put(const TensorView& view, const Part& part, int64_t head, float value) {
  if (view.empty()) return;
  view.as<float>()[part.request * view.stride[0] + head * view.stride[1] +
                   part.slot * view.stride[2]] = value;
}

// Softmax of one head over its dots z [n], which become weights; the factor that finishes its sum.
float finish_head(const Context& context, const SparseMlaArgs& args, const Part& part, int64_t head,
                  float* z, int64_t n) {
  float largest = -kInfinity, sum = 0.f;
  if (n > 0) {
    largest = args.scale * HWY_DYNAMIC_DISPATCH(LargestOf)(z, n);
    const bool round = context.numerics == Numerics::kOfficial;
    sum = HWY_DYNAMIC_DISPATCH(SoftmaxWeights)(args.scale, largest, round, z, n);
  }
  put(args.lse, part, head, n > 0 ? largest + std::log(sum) : kInfinity);
  put(args.max_logits, part, head, largest);
  if (n == 0) return 0.f;
  if (!args.normalized) return 1.f;
  if (!args.sink.empty()) sum += std::exp(args.sink.as<float>()[head] - largest);
  return 1.f / sum;
}

int64_t head_offset(const TensorMeta& meta, const Part& part, int64_t head) {
  return part.request * meta.stride[0] + part.slot * meta.stride[1] + head * meta.stride[2];
}

// At most kMaxHeadTile heads.
void attend(const Context& context, const SparseMlaArgs& args, const Part& part, const Keys& keys) {
  const auto n = static_cast<int64_t>(keys.rows.size());
  const int64_t d = args.q.dim(3), d_v = args.out.dim(3), heads = part.end - part.begin;
  // Kept by the thread: a tile of a small model takes a few microseconds.
  thread_local std::vector<float> q, z, out;
  q.resize(static_cast<size_t>(heads * d));
  z.resize(static_cast<size_t>(heads * n));
  out.resize(static_cast<size_t>(heads * d_v));

  for (int64_t i = 0; i < heads; ++i) {
    cpu::load(args.q, head_offset(args.q, part, part.begin + i), d, q.data() + i * d);
  }
  const float* k = keys.values.data();
  cpu::matmul_abt({q.data(), heads, d, d}, {k, n, d, d}, {z.data(), heads, n, n});
  float factor[kMaxHeadTile];
  for (int64_t i = 0; i < heads; ++i) {
    factor[i] = finish_head(context, args, part, part.begin + i, z.data() + i * n, n);
  }
  cpu::matmul_ab({z.data(), heads, n, n}, {k, n, d_v, d}, {out.data(), heads, d_v, d_v});
  for (int64_t i = 0; i < heads; ++i) {
    float* head = out.data() + i * d_v;
    cpu::scale(factor[i], head, head, d_v);
    cpu::store(args.out, head_offset(args.out, part, part.begin + i), d_v, head);
  }
}

}  // namespace

void sparse_mla_cpu(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  const int64_t s_q = args.q.dim(1), queries = args.q.dim(0) * s_q, heads = args.q.dim(2);
  check_ids("window", args.window, args.q.dim(0), s_q);
  check_ids("compressed", args.compressed, args.q.dim(0), s_q);
  const int64_t slots = topk_of(args.window) + topk_of(args.compressed);
  const int64_t operations = (args.q.dim(3) + args.out.dim(3)) * heads * slots;  // of one query
  const int threads = omp_get_max_threads();
  const int64_t tile = heads < threads * kMaxHeadTile ? kMaxHeadTile / 2 : kMaxHeadTile;
  // With few queries the outer region has one thread and the inner ones have them all.
#pragma omp parallel if (queries >= threads && cpu::worth_sharing(queries * operations))
  {
    Keys keys;
#pragma omp for schedule(dynamic)
    for (int64_t query = 0; query < queries; ++query) {
      const int64_t request = query / s_q, slot = query % s_q;
      load_keys(args, request, slot, keys);
#pragma omp parallel for schedule(dynamic) if (heads > tile && cpu::worth_sharing(operations))
      for (int64_t begin = 0; begin < heads; begin += tile) {
        attend(context, args, {request, slot, begin, std::min(begin + tile, heads)}, keys);
      }
    }
  }
}

}  // namespace dsv4
#endif  // HWY_ONCE
