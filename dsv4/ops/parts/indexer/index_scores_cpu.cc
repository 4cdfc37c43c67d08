// Scores are computed in tiles: 128 keys of one sequence are decoded to f32 and multiplied with the
// heads of one query, and the heads are summed in ascending order. The (query, tile) pairs are
// independent; consecutive queries of a sequence reuse the decoded tile.

#include "dsv4/ops/parts/indexer/indexer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/parts/indexer/index_scores_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/base/error.h"
#include "dsv4/cpu/math-inl.h"
#include "dsv4/cpu/matmul.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/ue8m0.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::indexer_kernel::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using dsv4::cpu::HWY_NAMESPACE::RoundToBf16;

// Values of e2m1 codes in the low nibbles. The three bits of x = 2^(e-1) (1 + m/2) are the fields
// of a float; the subnormals, decoded that way as 0.5 and 0.75, must become 0 and 0.5.
template <class D>
HWY_INLINE hn::Vec<D> E2m1Values(D f32, hn::VFromD<hn::RebindToUnsigned<D>> codes) {
  const hn::RebindToUnsigned<D> u32;
  const auto fields = hn::ShiftLeft<22>(hn::And(codes, hn::Set(u32, 7)));
  const auto x = hn::BitCast(f32, hn::Add(fields, hn::Set(u32, 126u << 23)));
  const auto one = hn::Set(f32, 1.f);
  const auto magnitude = hn::IfThenElse(hn::Lt(x, one), hn::Sub(hn::Add(x, x), one), x);
  const auto sign = hn::ShiftLeft<28>(hn::And(codes, hn::Set(u32, 8)));
  return hn::Or(magnitude, hn::BitCast(f32, sign));
}

// unpack_index_key() of formats/, vectorized.
// pairs: [width / 2], scales: [width / 32], key: [width]
void DecodeKey(const uint8_t* pairs, const uint8_t* scales, float* key, int64_t width) {
  constexpr int64_t kGroup = IndexLayoutFp4::kGroup;
  const hn::CappedTag<float, kGroup / 2> f32;
  const hn::RebindToUnsigned<decltype(f32)> u32;
  const hn::Rebind<uint8_t, decltype(f32)> u8;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  for (int64_t c = 0; c < width; c += 2 * step) {
    const auto scale = hn::Set(f32, ue8m0_to_f32(scales[c / kGroup]));
    const auto bytes = hn::PromoteTo(u32, hn::LoadU(u8, pairs + c / 2));
    const auto even = hn::Mul(scale, E2m1Values(f32, bytes));
    const auto odd = hn::Mul(scale, E2m1Values(f32, hn::ShiftRight<4>(bytes)));
    hn::StoreInterleaved2(even, odd, f32, key + c);
  }
}

// sum_h relu(qk[h]) w[h] at one vector of keys; NaN passes through.
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> HeadSum(D d, const dsv4::cpu::Matrix<const float>& qk, const float* weights,
                              int64_t column) {
  auto sum = hn::Zero(d);
  for (int64_t h = 0; h < qk.rows; ++h) {
    auto dot = hn::LoadU(d, qk.row(h) + column);
    if (kRound) dot = RoundToBf16(d, dot);
    dot = hn::IfThenZeroElse(hn::Lt(dot, hn::Zero(d)), dot);
    const auto product = hn::Mul(dot, hn::Set(d, weights[h]));
    sum = hn::Add(sum, kRound ? RoundToBf16(d, product) : product);
  }
  return kRound ? RoundToBf16(d, sum) : sum;
}

template <bool kRound>
HWY_INLINE void HeadSums(const dsv4::cpu::Matrix<const float>& qk, const float* weights,
                         float* scores) {
  const hn::ScalableTag<float> f32;
  const hn::CappedTag<float, 1> one;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  int64_t s = 0;
  for (; s + step <= qk.columns; s += step) {
    hn::StoreU(HeadSum<kRound>(f32, qk, weights, s), f32, scores + s);
  }
  for (; s < qk.columns; ++s) {
    hn::StoreU(HeadSum<kRound>(one, qk, weights, s), one, scores + s);
  }
}

void ScoreKeys(const dsv4::cpu::Matrix<const float>& qk, const float* weights, bool round,
               float* scores) {
  round ? HeadSums<true>(qk, weights, scores) : HeadSums<false>(qk, weights, scores);
}

}  // namespace dsv4::indexer_kernel::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <limits>
#include <vector>

#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"

namespace dsv4::indexer_kernel::cpu {

HWY_EXPORT(DecodeKey);
HWY_EXPORT(ScoreKeys);

namespace {

constexpr int64_t kKeyTile = 128;

void check_contents(const IndexScoresArgs& args) {
  const int64_t entries = args.keys.page_entries, n = args.scores.dim(1);
  for (int64_t i = 0; i < args.q.dim(0); ++i) {
    const int64_t sequence = args.sequence.as<int32_t>()[i],
                  visible = args.visible.as<int32_t>()[i];
    DSV4_CHECK(0 <= visible && visible <= n, "visible[{}]={} of {} scores", i, visible, n);
    DSV4_CHECK(0 <= sequence && sequence < args.pages.dim(0), "sequence[{}]={} of {}", i, sequence,
               args.pages.dim(0));
    const int64_t used = ceil_div(visible, entries), num_pages = args.keys.pages.dim(0);
    DSV4_CHECK(used <= args.pages.dim(1), "visible[{}]={} needs {} pages of {}", i, visible, used,
               args.pages.dim(1));
    const int32_t* pages = args.pages.row<int32_t>(sequence);
    for (int64_t p = 0; p < used; ++p) {
      DSV4_CHECK(0 <= pages[p] && pages[p] < num_pages, "pages[{}, {}]={} of a pool of {}",
                 sequence, p, pages[p], num_pages);
    }
  }
}

// What a thread keeps from one tile to the next.
class Scorer {
 public:
  Scorer(const Context& context, const IndexScoresArgs& args)
      : args_(args),
        round_(context.numerics == Numerics::kOfficial),
        h_(args.q.dim(1)),
        d_(args.q.dim(2)),
        q_(static_cast<size_t>(h_ * d_)),
        weights_(static_cast<size_t>(h_)),
        keys_(static_cast<size_t>(kKeyTile * d_)),
        qk_(static_cast<size_t>(kKeyTile * h_)) {}

  // Entries [begin, end) of one query.
  void score(int64_t query, int64_t begin, int64_t end) {
    float* scores = args_.scores.row<float>(query);
    const int64_t seen =
        std::clamp(int64_t{args_.visible.as<int32_t>()[query]}, begin, end) - begin;
    std::fill(scores + begin + seen, scores + end, -std::numeric_limits<float>::infinity());
    if (seen == 0) return;
    load_query(query);
    load_keys(args_.sequence.as<int32_t>()[query], begin, seen);
    const dsv4::cpu::Matrix<float> qk{qk_.data(), h_, seen, kKeyTile};
    dsv4::cpu::matmul_abt({q_.data(), h_, d_, d_}, {keys_.data(), seen, d_, d_}, qk);
    HWY_DYNAMIC_DISPATCH(ScoreKeys)
    ({qk_.data(), h_, seen, kKeyTile}, weights_.data(), round_, scores + begin);
  }

 private:
  void load_query(int64_t query) {
    if (query == query_) return;
    query_ = query;
    const auto& stride = args_.q.stride;
    for (int64_t h = 0; h < h_; ++h) {
      dsv4::cpu::load(args_.q, query * stride[0] + h * stride[1], d_, q_.data() + h * d_);
    }
    dsv4::cpu::load(args_.weights, query * args_.weights.row_stride(), h_, weights_.data());
    for (float& w : weights_) {
      w *= args_.weight_scale;
      if (round_) w = round_to_bf16(w);
    }
  }

  void load_keys(int64_t sequence, int64_t begin, int64_t count) {
    if (sequence != sequence_ || begin != tile_) num_keys_ = 0;
    sequence_ = sequence;
    tile_ = begin;
    const int32_t* pages = args_.pages.row<int32_t>(sequence);
    const int64_t entries = args_.keys.page_entries;
    for (; num_keys_ < count; ++num_keys_) {
      const int64_t s = begin + num_keys_;
      load_key(pages[s / entries], s % entries, keys_.data() + num_keys_ * d_);
    }
  }

  void load_key(int64_t page, int64_t entry, float* key) const {
    const IndexPool& pool = args_.keys;
    if (!pool.packed()) return load_row(pool, page * pool.page_entries + entry, key);
    const uint8_t* base = pool.pages.row<uint8_t>(page);
    HWY_DYNAMIC_DISPATCH(DecodeKey)
    (base + pool.layout.code_offset(entry),
     base + pool.layout.scale_offset(pool.page_entries, entry), key, d_);
  }

  const IndexScoresArgs& args_;
  const bool round_;
  const int64_t h_, d_;
  std::vector<float> q_, weights_, keys_, qk_;
  // The contents of q_ and keys_.
  int64_t query_ = -1, sequence_ = -1, tile_ = -1, num_keys_ = 0;
};

}  // namespace

void run(const Context& context, const IndexScoresArgs& args) {
  check_contents(args);
  const int64_t queries = args.q.dim(0), n = args.scores.dim(1);
  const int64_t tiles = queries == 0 ? 0 : ceil_div(n, kKeyTile);
  const int64_t share = std::min<int64_t>(queries, 8);  // enough to reuse a decoded tile
#pragma omp parallel if (dsv4::cpu::worth_sharing(args.q.numel() * n))
  {
    Scorer scorer(context, args);
#pragma omp for schedule(dynamic, share)
    for (int64_t i = 0; i < tiles * queries; ++i) {
      const int64_t begin = i / queries * kKeyTile;
      scorer.score(i % queries, begin, std::min(begin + kKeyTile, n));
    }
  }
}

}  // namespace dsv4::indexer_kernel::cpu
#endif  // HWY_ONCE
