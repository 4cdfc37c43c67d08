// Implementation cpu. Per query, every listed KV entry is decoded once into f32 [n, d]; then tiles
// of heads compute
//
//   S = Q K^T,  P = exp(scale S - m),  O = P V
//
// Threads share the queries when there are enough of them, else the entries and head tiles of one
// query. The arithmetic does not depend on the number of threads.

#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/model/sparse_mla/cpu/kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/base/error.h"
#include "dsv4/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::sparse_mla_kernel::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

float LargestOf(const float* s, int64_t n) {
  const hn::ScalableTag<float> f32;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  auto largest = hn::Set(f32, s[0]);
  int64_t j = 0;
  for (; j + step <= n; j += step) largest = hn::Max(largest, hn::LoadU(f32, s + j));
  float result = hn::GetLane(hn::MaxOfLanes(f32, largest));
  for (; j < n; ++j) result = s[j] > result ? s[j] : result;
  return result;
}

// One vector of exponentials of s[j]: written back as P, returned unrounded for the row sum.
template <class D>
HWY_INLINE hn::Vec<D> Exponentials(D d, float scale, float largest, bool round, float* s) {
  const auto logit = hn::Mul(hn::Set(d, scale), hn::LoadU(d, s));
  const auto e = dsv4::cpu::HWY_NAMESPACE::ExpNonPositive(d, hn::Sub(logit, hn::Set(d, largest)));
  hn::StoreU(round ? dsv4::cpu::HWY_NAMESPACE::RoundToBf16(d, e) : e, d, s);
  return e;
}

// s: [n] scores in, P out. Returns the sum of the unrounded P.
float Softmax(float scale, float largest, bool round, float* s, int64_t n) {
  const hn::ScalableTag<float> f32;
  const hn::CappedTag<float, 1> one;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  auto sums = hn::Zero(f32);
  int64_t j = 0;
  for (; j + step <= n; j += step) {
    sums = hn::Add(sums, Exponentials(f32, scale, largest, round, s + j));
  }
  float sum = hn::GetLane(hn::SumOfLanes(f32, sums));
  for (; j < n; ++j) sum += hn::GetLane(Exponentials(one, scale, largest, round, s + j));
  return sum;
}

}  // namespace dsv4::sparse_mla_kernel::cpu::HWY_NAMESPACE
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
#include "dsv4/formats/pack_kv_entry.h"

namespace dsv4::sparse_mla_kernel::cpu {

HWY_EXPORT(LargestOf);
HWY_EXPORT(Softmax);

namespace {

constexpr int64_t kMaxHeadTile = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct KvEntry {
  const KvPool* pool;
  int64_t row;
};

// The KV entries of one query, decoded.
struct Keys {
  std::vector<KvEntry> entries;
  std::vector<float> values;  // [entries, d]
};

// Indices that the queries of a request use.
int64_t length(const KvList& list, int64_t request) {
  const int64_t n = list.topk();
  if (list.topk_length.empty()) return n;
  return std::clamp<int64_t>(list.topk_length.as<int32_t>()[request], 0, n);
}

// Indices of one query of a request.
const int32_t* indices_of(const KvList& list, int64_t request, int64_t query) {
  return list.indices.as<int32_t>() + request * list.indices.stride[0] +
         query * list.indices.stride[1];
}

void check_indices(const char* name, const KvList& list, int64_t requests, int64_t s_q) {
  for (int64_t query = 0; query < requests * s_q; ++query) {
    const int64_t n = length(list, query / s_q);
    const int32_t* indices = n == 0 ? nullptr : indices_of(list, query / s_q, query % s_q);
    for (int64_t j = 0; j < n; ++j) {
      DSV4_CHECK(indices[j] < list.pool.num_rows(), "{}[{}, {}] is row {} of a pool of {}", name,
                 query, j, indices[j], list.pool.num_rows());
    }
  }
}

void append_entries(const KvList& list, int64_t request, int64_t query,
                    std::vector<KvEntry>& entries) {
  const int64_t n = length(list, request);
  const int32_t* indices = n == 0 ? nullptr : indices_of(list, request, query);
  for (int64_t j = 0; j < n; ++j) {
    if (indices[j] >= 0) entries.push_back({&list.pool, indices[j]});
  }
}

// load_row() of pools.h, vectorized. x: [width]
void decode_entry(const KvPool& pool, int64_t row, float* x) {
  const int64_t entries = pool.page_entries, page = row / entries, entry = row % entries;
  const KvLayout& layout = pool.layout;
  if (!pool.packed()) {
    const int64_t first = page * pool.pages.row_stride() + entry * layout.width();
    return dsv4::cpu::load(pool.pages, first, layout.width(), x);
  }
  const uint8_t* base = pool.pages.row<uint8_t>(page);
  const uint8_t* codes = base + layout.entry_offset(entry);
  const uint8_t* scales = base + layout.scale_offset(entries, entry);
  const int group = layout.group();
  for (int g = 0; g < layout.num_scales(); ++g) {
    dsv4::cpu::decode_e4m3(codes + g * group, kv_scale(layout, scales, g), x + g * group, group);
  }
  const auto* rope = reinterpret_cast<const uint16_t*>(base + layout.rope_offset(entry));
  dsv4::cpu::widen_bf16(rope, x + layout.nope, layout.rope);
}

void load_keys(const SparseMlaArgs& args, int64_t request, int64_t query, Keys& keys) {
  const int64_t d = args.q.dim(3);
  keys.entries.clear();
  append_entries(args.window, request, query, keys.entries);
  append_entries(args.compressed, request, query, keys.entries);
  const auto n = static_cast<int64_t>(keys.entries.size());
  keys.values.resize(static_cast<size_t>(n * d));
  float* values = keys.values.data();
#pragma omp parallel for if (dsv4::cpu::worth_sharing(4 * n * d))
  for (int64_t j = 0; j < n; ++j) {
    const KvEntry& entry = keys.entries[static_cast<size_t>(j)];
    decode_entry(*entry.pool, entry.row, values + j * d);
  }
}

// A query of a request and a range of its heads.
struct HeadTile {
  int64_t request, query, begin, end;
};

// lse or max_logits; the view may be empty.
void put(const TensorView& view, const HeadTile& tile, int64_t head, float value) {
  if (view.empty()) return;
  view.as<float>()[tile.request * view.stride[0] + head * view.stride[1] +
                   tile.query * view.stride[2]] = value;
}

// Softmax of one head over its scores s [n], which become P; returns the factor for O.
float finish_head(const Context& context, const SparseMlaArgs& args, const HeadTile& tile,
                  int64_t head, float* s, int64_t n) {
  float largest = -kInfinity, sum = 0.f;
  if (n > 0) {
    largest = args.scale * HWY_DYNAMIC_DISPATCH(LargestOf)(s, n);
    const bool round = context.numerics == Numerics::kOfficial;
    sum = HWY_DYNAMIC_DISPATCH(Softmax)(args.scale, largest, round, s, n);
  }
  put(args.lse, tile, head, n > 0 ? largest + std::log(sum) : kInfinity);
  put(args.max_logits, tile, head, largest);
  if (n == 0) return 0.f;
  if (!args.normalized) return 1.f;
  if (!args.sink.empty()) sum += std::exp(args.sink.as<float>()[head] - largest);
  return 1.f / sum;
}

int64_t head_offset(const TensorMeta& meta, const HeadTile& tile, int64_t head) {
  return tile.request * meta.stride[0] + tile.query * meta.stride[1] + head * meta.stride[2];
}

// At most kMaxHeadTile heads.
void attend(const Context& context, const SparseMlaArgs& args, const HeadTile& tile,
            const Keys& keys) {
  const auto n = static_cast<int64_t>(keys.entries.size());
  const int64_t d = args.q.dim(3), d_v = args.out.dim(3), heads = tile.end - tile.begin;
  // thread_local: a head tile of a small model takes a few microseconds.
  thread_local std::vector<float> q, s, out;
  q.resize(static_cast<size_t>(heads * d));
  s.resize(static_cast<size_t>(heads * n));
  out.resize(static_cast<size_t>(heads * d_v));

  for (int64_t i = 0; i < heads; ++i) {
    dsv4::cpu::load(args.q, head_offset(args.q, tile, tile.begin + i), d, q.data() + i * d);
  }
  const float* k = keys.values.data();
  dsv4::cpu::matmul_abt({q.data(), heads, d, d}, {k, n, d, d}, {s.data(), heads, n, n});
  float factor[kMaxHeadTile];
  for (int64_t i = 0; i < heads; ++i) {
    factor[i] = finish_head(context, args, tile, tile.begin + i, s.data() + i * n, n);
  }
  dsv4::cpu::matmul_ab({s.data(), heads, n, n}, {k, n, d_v, d}, {out.data(), heads, d_v, d_v});
  for (int64_t i = 0; i < heads; ++i) {
    float* head = out.data() + i * d_v;
    dsv4::cpu::scale(factor[i], head, head, d_v);
    dsv4::cpu::store(args.out, head_offset(args.out, tile, tile.begin + i), d_v, head);
  }
}

}  // namespace

// Entries and scores of a query; a vector that grows holds up to three times its contents while it
// moves.
HostBytes host_bytes(const SparseMlaArgs& args) {
  const int64_t entries = args.window.topk() + args.compressed.topk();
  const int64_t floats =
      entries * (args.q.dim(3) + kMaxHeadTile) + kMaxHeadTile * (args.q.dim(3) + args.out.dim(3));
  return {.per_thread = 3 * (floats * static_cast<int64_t>(sizeof(float)) +
                             entries * static_cast<int64_t>(sizeof(KvEntry)))};
}

void run(const Context& context, const SparseMlaArgs& args) {
  const int64_t s_q = args.q.dim(1), queries = args.q.dim(0) * s_q, heads = args.q.dim(2);
  check_indices("window", args.window, args.q.dim(0), s_q);
  check_indices("compressed", args.compressed, args.q.dim(0), s_q);
  const int64_t topk = args.window.topk() + args.compressed.topk();
  const int64_t operations = (args.q.dim(3) + args.out.dim(3)) * heads * topk;  // of one query
  const int threads = omp_get_max_threads();
  const int64_t tile = heads < threads * kMaxHeadTile ? kMaxHeadTile / 2 : kMaxHeadTile;
  // With few queries the outer region has one thread and the inner ones use all of them.
#pragma omp parallel if (queries >= threads && dsv4::cpu::worth_sharing(queries * operations))
  {
    Keys keys;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t request = i / s_q, query = i % s_q;
      load_keys(args, request, query, keys);
#pragma omp parallel for schedule(dynamic) if (heads > tile && dsv4::cpu::worth_sharing(operations))
      for (int64_t begin = 0; begin < heads; begin += tile) {
        attend(context, args, {request, query, begin, std::min(begin + tile, heads)}, keys);
      }
    }
  }
}

}  // namespace dsv4::sparse_mla_kernel::cpu
#endif  // HWY_ONCE
