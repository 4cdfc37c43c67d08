// The correctness grid of the peer's own tests (docs/spec/attention-kernels.md 1.8), sparse
// decode and sparse prefill, with its data (peer_scene.h) and its tolerances, for every device
// implementation; then head counts and page sizes that the peer does not support. Without a GPU a
// few of the small cases run on the CPU implementation.
//
// The fp64 oracle would take hours for 321 requests of 128 heads and 2,048 rows. So each case is
// compared with it at a random sample of (query, head) pairs, at least 64 where there are as many,
// the first and the last query and head among them. All other elements have to be written and
// finite, and every lse and max_logits infinite exactly where a query has no valid key.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "tests/harness/arena.h"
#include "tests/harness/impl_count.h"
#include "tests/sparse_mla/peer_scene.h"

namespace dsv4::test {
namespace {

const TestedElsewhere kElsewhere{"parts"};  // op_sparse_mla_test

// --- comparison -------------------------------------------------------------------------------

struct Allowed {
  double abs, rel;
  double difference = HUGE_VAL;  // 1 - 2 x.y / (x.x + y.y)
};
struct PeerTolerance {
  Allowed out, sums;  // sums: lse and max_logits
};
constexpr PeerTolerance kDecode{{1e-3, 2.01 / 128, 5e-6}, {1e-6, 8.01 / 65536}};
constexpr PeerTolerance kPrefill{{8e-4, 3.01 / 128, 7e-6}, {1e-6, 2.01 / 65536}};

using Values = std::vector<double>;

// An element is right when either its absolute or its relative error is allowed. Empty: all are.
std::string peer_compare(const char* name, const Values& got, const Values& want,
                         const Allowed& allowed) {
  if (got.size() != want.size()) return fmt::format("{}: {} values", name, got.size());
  size_t wrong = 0, worst = 0;
  double excess = 0, dot = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = got[i], w = want[i], error = std::abs(g - w);
    if (g == w) {
      if (std::isfinite(g)) dot += g * w, squares += g * g + w * w;
      continue;
    }
    const bool comparable = std::isfinite(g) && std::isfinite(w);
    if (comparable) dot += g * w, squares += g * g + w * w;
    if (comparable && (error <= allowed.abs || error <= allowed.rel * std::abs(w))) continue;
    ++wrong;
    const double share = comparable ? error : HUGE_VAL;
    if (share > excess) excess = share, worst = i;
  }
  if (wrong > 0) {
    return fmt::format("{}: {} of {} sampled values differ, the worst: got {:.9g}, want {:.9g}",
                       name, wrong, got.size(), got[worst], want[worst]);
  }
  const double difference = squares > 0 ? 1 - 2 * dot / squares : 0;
  if (difference <= allowed.difference) return "";
  return fmt::format("{}: difference {:.3g} of sampled values", name, difference);
}

// --- sample -----------------------------------------------------------------------------------

// Some heads of a query and the oracle's values for them.
struct Sample {
  int64_t query;
  std::vector<int64_t> heads;
  std::vector<SparseMlaHeadWant> want;
};

// At least `n` of [begin, end), if there are as many; both ends are among them.
std::vector<int64_t> choose_some(int64_t begin, int64_t end, int64_t n, Rng& rng) {
  std::set<int64_t> chosen{begin, end - 1};
  const int64_t count = std::min(n, end - begin);
  while (static_cast<int64_t>(chosen.size()) < count) chosen.insert(begin + rng.below(end - begin));
  return {chosen.begin(), chosen.end()};
}

// For runs of the first head_counts[0], head_counts[1], .. heads.
std::vector<Sample> make_samples(const PeerScene& scene, const std::vector<int64_t>& head_counts,
                                 uint64_t seed) {
  constexpr int64_t kPairs = 64;
  const int64_t fewest = head_counts.front();
  const int64_t queries = std::max<int64_t>(16, ceil_div(kPairs, fewest));
  Rng rng(seed);
  std::vector<Sample> samples;
  for (const int64_t query : choose_some(0, scene.queries(), queries, rng)) {
    samples.push_back({.query = query, .heads = {}, .want = {}});
  }
  const int64_t per_query = ceil_div(kPairs, static_cast<int64_t>(samples.size()));
  for (Sample& sample : samples) {
    int64_t begin = 0;
    for (const int64_t count : head_counts) {
      const auto some = choose_some(begin, count, per_query, rng);
      sample.heads.insert(sample.heads.end(), some.begin(), some.end());
      begin = count;
    }
  }
  const SparseMlaArgs args = [&] {
    SparseMlaArgs on_host = scene.args(head_counts.back(), false);
    on_host.out = TensorView(on_host.q, nullptr);  // the oracle reads d_v only
    on_host.out.shape[static_cast<size_t>(on_host.out.rank - 1)] = kPeerValues;
    return on_host;
  }();
  const int64_t s_q = args.q.dim(1);
#pragma omp parallel for schedule(dynamic)
  for (Sample& sample : samples) {
    sample.want = sparse_mla_oracle(Context{.numerics = Numerics::kExact}, args, sample.query / s_q,
                                    sample.query % s_q, sample.heads);
  }
  return samples;
}

// --- one case ---------------------------------------------------------------------------------

class PeerGrid : public ::testing::Test {
 protected:
  // Runs every implementation on the first head_counts[i] heads of the case, which has as many as
  // the last. False: it failed; stop.
  bool check(PeerCase test, const std::vector<int64_t>& head_counts) {
    test.heads = head_counts.back();
    const uint64_t seed = mix64(++cases_);
    scene_.make(test, seed);
    valid_.resize(static_cast<size_t>(scene_.queries()));
#pragma omp parallel for
    for (int64_t i = 0; i < scene_.queries(); ++i) valid_[static_cast<size_t>(i)] = scene_.valid(i);
    const std::vector<Sample> samples = make_samples(scene_, head_counts, seed);
    for (const int64_t heads : head_counts) {
      const SparseMlaArgs args = with_outputs(scene_.args(heads, true), test, heads);
      int accepted = 0;
      for (const Impl<SparseMlaArgs>& row : sparse_mla.impls) {
        const Context context{.device = gpu()};
        if (!reaches(row.arch, context)) continue;
        const char* rejected = row.reject(context, args);
        count_impl(row, rejected);
        if (rejected != nullptr) continue;
        ++accepted;
        const std::string report = check_row(row, context, args, test, samples);
        EXPECT_EQ(report, "") << row.name << ": " << describe(test) << " heads " << heads;
      }
      EXPECT_GT(accepted, 0) << describe(test) << " heads " << heads;
    }
    return !HasFailure();
  }

  // Without a GPU only one in many of the small cases runs.
  bool wanted(int64_t b) {
    constexpr uint64_t kOneOf = 7;
    return gpu() != nullptr || (b <= 4 && mix64(++offered_) % kOneOf == 0);
  }

 private:
  static std::string describe(const PeerCase& c) {
    const auto list = [](const PeerList& l) {
      return fmt::format("(s_k {} topk {} page {}{})", l.s_k, l.topk, l.page,
                         l.lengths ? " lengths" : "");
    };
    return fmt::format("{} d {} b {} s_q {}{} {} + {}", c.prefill ? "prefill" : "decode", c.d, c.b,
                       c.s_q, c.varlen ? " varlen" : "", list(c.main), list(c.extra));
  }

  SparseMlaArgs with_outputs(SparseMlaArgs args, const PeerCase& test, int64_t heads) {
    out_.reshape(DType::kBF16, {test.b, test.s_q, heads, kPeerValues});
    lse_.reshape(DType::kF32, {test.b, heads, test.s_q});
    max_logits_.reshape(DType::kF32, {test.b, heads, test.s_q});
    args.out = out_.device(), args.lse = lse_.device(), args.max_logits = max_logits_.device();
    return args;
  }

  static void poison(const Twin& twin) {
    constexpr int64_t kPiece = 1 << 20;
    const int64_t bytes = twin.host().bytes();
#pragma omp parallel for
    for (int64_t at = 0; at < bytes; at += kPiece) {
      std::memset(twin.host().data + at, 0xff, static_cast<size_t>(std::min(kPiece, bytes - at)));
    }
    twin.upload();
  }

  std::string check_row(const Impl<SparseMlaArgs>& row, const Context& context,
                        const SparseMlaArgs& args, const PeerCase& test,
                        const std::vector<Sample>& samples) {
    for (const Twin* twin : {&out_, &lse_, &max_logits_}) poison(*twin);
    row.run(context, args);
    if (context.device != nullptr) wait(*context.device);
    for (const Twin* twin : {&out_, &lse_, &max_logits_}) twin->download();
    const std::string everywhere = check_everywhere();
    return everywhere.empty() ? check_samples(test.prefill ? kPrefill : kDecode, samples)
                              : everywhere;
  }

  // Written, finite, and infinite where required.
  std::string check_everywhere() const {
    const TensorView &out = out_.host(), &lse = lse_.host(), &top = max_logits_.host();
    int64_t bad_out = 0, bad_sums = 0;
    const auto* codes = out.as<uint16_t>();
#pragma omp parallel for reduction(+ : bad_out)
    for (int64_t i = 0; i < out.numel(); ++i) bad_out += (codes[i] & 0x7f80) == 0x7f80;
    const int64_t s_q = out.dim(1), heads = out.dim(2);
#pragma omp parallel for reduction(+ : bad_sums)
    for (int64_t i = 0; i < lse.numel(); ++i) {  // [b, heads, s_q]
      const int64_t query = i / (heads * s_q) * s_q + i % s_q;
      const bool any = valid_[static_cast<size_t>(query)] > 0;
      const float l = lse.as<float>()[i], m = top.as<float>()[i];
      bad_sums += any ? !std::isfinite(l) || !std::isfinite(m) : l != HUGE_VALF || m != -HUGE_VALF;
    }
    if (bad_out + bad_sums == 0) return "";
    return fmt::format("{} of {} outputs are not finite, {} of {} lse or max_logits are wrong",
                       bad_out, out.numel(), bad_sums, lse.numel());
  }

  std::string check_samples(const PeerTolerance& tolerance,
                            const std::vector<Sample>& samples) const {
    const int64_t s_q = out_.host().dim(1), heads = out_.host().dim(2);
    Values got[3], want[3];  // out, lse, max_logits
    for (const Sample& sample : samples) {
      for (size_t i = 0; i < sample.heads.size(); ++i) {
        const int64_t head = sample.heads[i];
        if (head >= heads) continue;
        const SparseMlaHeadWant& one = sample.want[i];
        want[0].insert(want[0].end(), one.out.begin(), one.out.end());
        want[1].push_back(one.lse), want[2].push_back(one.max_logit);
        for (int64_t c = 0; c < kPeerValues; ++c) {
          got[0].push_back(value_at(out_.host(), (sample.query * heads + head) * kPeerValues + c));
        }
        const int64_t at = (sample.query / s_q * heads + head) * s_q + sample.query % s_q;
        got[1].push_back(value_at(lse_.host(), at));
        got[2].push_back(value_at(max_logits_.host(), at));
      }
    }
    std::string report = peer_compare("out", got[0], want[0], tolerance.out);
    if (report.empty()) report = peer_compare("lse", got[1], want[1], tolerance.sums);
    if (report.empty()) report = peer_compare("max_logits", got[2], want[2], tolerance.sums);
    return report;
  }

  PeerScene scene_;
  Twin out_, lse_, max_logits_;
  std::vector<int64_t> valid_;  // rows of each query
  uint64_t cases_ = 0, offered_ = 0;
};

// --- the peer's decode grid -------------------------------------------------------------------

constexpr PeerList kLists[] = {{512, 64, 2},     {512, 64, 64},    {512, 64, 69},
                               {1024, 576, 2},   {1024, 576, 61},  {2046, 2048, 2},
                               {2046, 2048, 64}, {2046, 2048, 576}};

// Every (b, s_q, varlen, list) of the grid.
template <class Visit>
void for_each_decode(int d, const Visit& visit) {
  for (const int64_t b : {4, 74, 321}) {
    for (const int64_t s_q : {1, 3}) {
      for (const bool varlen : {false, true}) {
        for (size_t i = 0; i < std::size(kLists); ++i) {
          visit(PeerCase{.d = d, .b = b, .s_q = s_q, .main = kLists[i], .varlen = varlen}, i);
        }
      }
    }
  }
}

TEST_F(PeerGrid, DecodeV32) {
  for_each_decode(576, [&](const PeerCase& test, size_t) {
    if (!HasFailure() && wanted(test.b)) check(test, {64, 128});
  });
}

// The second list is another of the same eight, so that page sizes differ too.
TEST_F(PeerGrid, DecodeV4) {
  for_each_decode(512, [&](PeerCase test, size_t i) {
    for (const bool lengths : {false, true}) {
      for (const int extra : {0, 1, 2}) {  // none, whole, with lengths
        test.main.lengths = lengths;
        test.extra = extra == 0 ? PeerList{} : kLists[(i + 3) % std::size(kLists)];
        test.extra.lengths = extra == 2;
        if (!HasFailure() && wanted(test.b)) check(test, {64, 128});
      }
    }
  });
}

TEST_F(PeerGrid, DecodeCorners) {
  for (const int d : {512, 576}) {
    for (const bool sink : {false, true}) {
      for (const PeerList& list : {PeerList{512, 64, 61}, PeerList{650, 576, 53}}) {
        const PeerCase base{.d = d, .b = 4, .s_q = 3, .main = list, .varlen = true, .sink = sink};
        PeerCase invalid = base, empty = base;
        invalid.all_invalid = true;
        empty.main.lengths = true;  // one request of these has length 0
        for (const PeerCase& test : {base, invalid, empty}) {
          if (!HasFailure() && (gpu() != nullptr || sink)) check(test, {64, 128});
        }
      }
    }
  }
}

// --- the peer's prefill grid ------------------------------------------------------------------

PeerCase prefill(int d, int64_t s_q, int64_t s_kv, int64_t topk) {
  return {.d = d, .b = s_q, .main = {.s_k = s_kv, .topk = topk}, .prefill = true};
}

TEST_F(PeerGrid, Prefill) {
  constexpr int64_t kSizes[][2] = {{128, 128},  {256, 256},  {512, 512}, {592, 128}, {1840, 256},
                                   {1592, 384}, {1521, 512}, {95, 128},  {153, 256}, {114, 384}};
  for (const int d : {512, 576}) {
    for (const int64_t s_q : {1, 62, 213}) {
      for (const auto& [s_kv, topk] : kSizes) {
        for (const bool sink : {false, true}) {
          for (const bool lengths : {false, true}) {
            PeerCase test = prefill(d, s_q, s_kv, topk);
            test.sink = sink, test.main.lengths = lengths;
            if (!HasFailure() && wanted(s_q)) check(test, {64, 128});
          }
        }
      }
    }
  }
}

TEST_F(PeerGrid, PrefillCorners) {
  for (const int d : {512, 576}) {
    check(prefill(d, 1, 128, 128), {64, 128});
    check(prefill(d, 1, 256, 256), {64, 128});
    if (gpu() == nullptr) continue;
    check(prefill(d, 1234, 4321, 4096), {128});
    PeerCase invalid = prefill(d, 4096, 2048, 2048);
    invalid.all_invalid = true;
    check(invalid, {64});
  }
}

// More queries than a grid has CTAs along y or z.
TEST_F(PeerGrid, PrefillOfManyQueries) {
  PeerCase many = prefill(512, gpu() != nullptr ? 70'000 : 700, 256, 128);
  many.same_queries = true;
  check(many, {gpu() != nullptr ? 64 : 8});
}

// --- beyond the peer --------------------------------------------------------------------------

TEST_F(PeerGrid, AnyHeadsAndPages) {
  for (const int d : {512, 576}) {
    for (const int page : {1, 3, 300}) {
      for (const int64_t s_q : {1, 2}) {
        const PeerCase test{.d = d,
                            .b = 33,
                            .s_q = s_q,
                            .main = {700, 190, page, true},
                            .extra = {400, 130, page},
                            .varlen = true};
        if (!HasFailure() && (gpu() != nullptr || (d == 512 && page == 3 && s_q == 2))) {
          check(test, {1, 8, 16, 20, 32, 100});
        }
      }
    }
    if (gpu() == nullptr) continue;
    check(prefill(d, 70, 700, 190), {1, 8, 16, 20, 32, 100});
  }
}

}  // namespace
}  // namespace dsv4::test
