// Implementations sm90_few and sm90_many of hc_boundary.h on the emulator: both kernels launched
// early, between a kernel that writes their inputs and one that reads their outputs, against the
// oracle.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/post_mix.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace few = hc_boundary_kernel::sm90_few;
namespace many = hc_boundary_kernel::sm90_many;
using emulator::touching;
using test::Arena;

using Case = test::HcBoundaryShape;

HcBoundaryArgs make_args(Arena& arena, const Case& c) {
  Rng rng(static_cast<uint64_t>(c.t * 100 + c.d));
  return test::random_boundary(arena, rng, c);
}

// The kernels between one that writes their inputs and one that reads their outputs.
void run_stream(const HcBoundaryArgs& args, const emulator::Kernel& first,
                const emulator::Kernel& second, uint64_t seed) {
  std::vector<ConstTensorView> inputs = {args.streams};
  std::vector<ConstTensorView> outputs = {args.streams, args.x, args.post, args.comb};
  if (args.codes.rank > 0) outputs.insert(outputs.end(), {args.codes, args.scales});
  for (const ConstTensorView& view : {args.y, args.y_post, args.y_comb})
    if (view.rank > 0) inputs.push_back(view);
  if (!args.y_words.empty())  // which the exchange before counts
    inputs.push_back({TensorMeta::contiguous(DType::kI64, {PeerWait::kPlaces}),
                      reinterpret_cast<const std::byte*>(args.y_words.wait.done)});
  emulator::launch_stream({touching(inputs), first, second, touching(outputs)}, seed);
}

// walks: a CTA of mix takes several runs of kTokens tokens.
template <int kTokens, class Y, class W>
void run_few(const HcBoundaryArgs& args, uint64_t seed, bool walks = false) {
  const auto t = static_cast<int>(args.streams.dim(0)), d = static_cast<int>(args.streams.dim(2));
  const auto slices = static_cast<int>(few::num_slices(args));
  std::vector<float> partial(static_cast<size_t>(t * few::kSums * slices), NAN);
  const few::Params p = few::make_params(args, partial.data());
  run_stream(args,
             {{.grid = {slices, walks ? 2 : (t + kTokens - 1) / kTokens},
               .block = few::kMixWarps * kWarp,
               .pdl = true,
               .resident = 3},
              [&] {
                args.y_words.empty() ? few::mix_kernel<kTokens, Y>(p)
                                     : few::exchanging_mix_kernel<kTokens, Y>(p, args.y_words);
              }},
             {{.grid = {t, 2}, .block = d / few::kRun, .pdl = true, .resident = 2},
              [&] { few::finish_kernel<W>(p); }},
             seed);
}

// sms: of the imagined GPU, which decides how many blocks of tokens a CTA walks over.
template <class Y, class W>
void run_many(const HcBoundaryArgs& args, int sms, uint64_t seed) {
  const auto t = static_cast<int>(args.streams.dim(0)), d = static_cast<int>(args.streams.dim(2));
  const int tiles = d / many::kColumns;
  std::vector<float> dots(static_cast<size_t>(tiles * t * few::kMixes), NAN);
  std::vector<float> squares(static_cast<size_t>(tiles * t), NAN);
  const many::ManyParams p{.call = few::make_params(args, nullptr),
                           .dots = dots.data(),
                           .squares = squares.data(),
                           .tiles = tiles,
                           .blocks = many::blocks_of_cta(t, tiles, sms)};
  const auto groups = static_cast<int>(ceil_div(t, p.blocks * many::kBlock));
  run_stream(args,
             {{.grid = {tiles, groups},
               .block = many::kPostMixThreads,
               .shared = sizeof(many::PostMixShared),
               .pdl = true,
               .resident = 2},
              [&] { many::post_mix_kernel<Y>(p); }},
             {{.grid = static_cast<int>(ceil_div(t, many::kFinishTokens)),
               .block = d / few::kRun + kWarp,
               .pdl = true,
               .resident = 2},
              [&] { many::finish_kernel<W, many::kMaxColumns>(p); }},
             seed);
}

// What the boundary computes from the X' that it has stored: an X' at a tie, which may round
// the other way than the oracle's, does not count.
HcBoundaryWant want_of_stored(HcBoundaryArgs args) {
  args.y = {}, args.y_post = {}, args.y_comb = {};
  HcBoundaryWant want = hc_boundary_oracle(args);
  for (double& v : want.x) v = oracle::bf16(v);
  return want;
}

// Tolerances of streams and x: hc_boundary_test.cc. run(args, i): the same bits for any i.
void check_stream(Case c, const std::function<void(const HcBoundaryArgs&, int)>& run) {
  Arena arena;
  c.codes = c.t > 1;
  const HcBoundaryArgs args = make_args(arena, c);
  const std::vector<double> streams = hc_boundary_oracle(args).streams;
  SCOPED_TRACE(fmt::format("{} tokens of {}", c.t, c.d));
  emulator::check_runs(
      arena, 4, [&](int i) { run(args, i); },
      [&] {
        EXPECT_EQ(test::compare(args.streams, streams, {.ulps = 0.51, .rel = 5e-6}), "");
        const HcBoundaryWant want = want_of_stored(args);
        EXPECT_EQ(test::compare(args.x, want.x, {.ulps = 1.01, .rel = 0x1p-8, .cosine = 2e-7}), "");
        EXPECT_EQ(test::compare(args.post, want.post, {.ulps = 4, .abs = 1e-5}), "");
        EXPECT_EQ(test::compare(args.comb, want.comb, {.ulps = 4, .abs = 1e-5}), "");
        if (args.codes.rank == 0) return;
        const QuantizeQ8Want codes = quantize_q8_oracle(
            {.x = args.x, .codes = args.codes, .scales = args.scales, .group = few::kGroup});
        EXPECT_EQ(test::compare(args.codes, codes.codes, {.ulps = 0}), "");
        EXPECT_EQ(test::compare(args.scales, codes.scales, {.ulps = 0}), "");
      });
}

// The bits do not depend on how many tokens a CTA of mix has.
template <class Y = bf16, class W = bf16>
void check(const Case& c) {
  check_stream(c, [](const HcBoundaryArgs& args, int i) {
    const auto seed = static_cast<uint64_t>(i);
    i % 3 == 0   ? run_few<8, Y, W>(args, seed, i % 2 == 1)
    : i % 3 == 1 ? run_few<1, Y, W>(args, seed, i % 2 == 1)
                 : run_few<4, Y, W>(args, seed, i % 2 == 1);
  });
}

// Nor on how many blocks of tokens a CTA of post_mix has.
template <class Y = bf16, class W = bf16>
void check_many(const Case& c) {
  check_stream(c, [&](const HcBoundaryArgs& args, int i) {
    run_many<Y, W>(args, i % 2 == 0 ? 1 : 132, static_cast<uint64_t>(i));
  });
}

// The middle one of three ranks. The others have given their columns of y, of which this rank has
// none.
class MiddleRank {
 public:
  static constexpr int kRanks = 3, kRank = 1;

  MiddleRank(const HcBoundaryArgs& args, int64_t unit)
      : args_(args),
        all_(args.y.data, args.y.data + args.y.bytes()),
        own_(all_),
        words_(kRanks, std::vector<ptx::NumberedWord>(2 * PeerWords::kInBuffer)),
        done_(PeerWait::kPlaces, kBefore) {
    const int64_t d = args.y.dim(1), item = item_bytes(args.y.dtype);
    args_.y = {TensorMeta::contiguous(args.y.dtype, {args.y.dim(0), d}), own_.data()};
    PeerWords& y = args_.y_words;
    y.rank = kRank, y.world = kRanks;
    y.wait = {.done = done_.data(), .waited = &waited_, .stop = &stop_, .fault = &fault_};
    for (int r = 0; r < kRanks; ++r) {
      y.end[r] = static_cast<int32_t>(d / unit * (r + 1) / kRanks * unit);
      y.words[r] = words_[static_cast<size_t>(r)].data();
    }
    for (int64_t byte = 0; byte < args.y.bytes(); byte += PeerWords::kBytes) {
      if (is_own(byte / item % d)) continue;
      ptx::NumberedWord& word = buffer(kRank)[byte / PeerWords::kBytes];
      std::memcpy(&word.value, &all_[static_cast<size_t>(byte)], sizeof word.value);
      word.number = kBefore + 1;
      std::memset(&own_[static_cast<size_t>(byte)], 0xff, sizeof word.value);  // NaN
    }
  }

  const HcBoundaryArgs& args() const { return args_; }

  // After the call: the others have this rank's columns and nothing else.
  void verify() {
    const int64_t d = args_.y.dim(1), item = item_bytes(args_.y.dtype);
    for (const int other : {0, 2}) {
      for (int64_t byte = 0; byte < args_.y.bytes(); byte += PeerWords::kBytes) {
        const ptx::NumberedWord& word = buffer(other)[byte / PeerWords::kBytes];
        const bool own = is_own(byte / item % d);
        ASSERT_EQ(word.number, own ? kBefore + 1 : 0) << "rank " << other << ", byte " << byte;
        uint64_t want = 0;
        if (own) std::memcpy(&want, &all_[static_cast<size_t>(byte)], sizeof want);
        ASSERT_EQ(word.value, want) << "rank " << other << ", byte " << byte;
      }
    }
    for (const int64_t done : done_) ASSERT_EQ(done, kBefore + 1);
    EXPECT_GT(waited_, 0);
    EXPECT_EQ(stop_, 0);
  }

 private:
  static constexpr int64_t kBefore = 6;  // exchanges

  bool is_own(int64_t column) const {
    return column >= args_.y_words.end[kRank - 1] && column < args_.y_words.end[kRank];
  }
  ptx::NumberedWord* buffer(int rank) {
    return buffer_of(words_[static_cast<size_t>(rank)].data(), kBefore + 1);
  }

  HcBoundaryArgs args_;
  std::vector<std::byte> all_, own_;  // y
  std::vector<std::vector<ptx::NumberedWord>> words_;
  std::vector<int64_t> done_;
  int64_t waited_ = 0, stop_ = 0;
  PeerFault fault_{};
};

// unit: of the columns of ranks
template <class Y = bf16>
void check_exchange(const Case& c, int64_t unit) {
  check_stream(c, [&](const HcBoundaryArgs& args, int i) {
    MiddleRank rank(args, unit);
    const auto seed = static_cast<uint64_t>(i);
    i % 3 == 0   ? run_few<8, Y, bf16>(rank.args(), seed, i % 2 == 1)
    : i % 3 == 1 ? run_few<1, Y, bf16>(rank.args(), seed, i % 2 == 1)
                 : run_few<4, Y, bf16>(rank.args(), seed, i % 2 == 1);
    rank.verify();
  });
}

TEST(HcBoundaryEmulated, ExchangesColumnsOfRanks) {
  check_exchange({.t = 1, .d = 512}, 128);
  check_exchange({.t = 5, .d = 256}, 32);
  check_exchange<float>({.t = 3, .d = 768, .y = DType::kF32}, 128);
  check_exchange<float>({.t = 11, .d = 256, .y = DType::kF32}, 64);
}

TEST(HcBoundaryEmulated, AgreesWithOracle) {
  check({.t = 1, .d = 256});
  check({.t = 3, .d = 512});
  check<bf16, float>({.t = 9, .d = 256, .first = true, .norm = DType::kF32});
  check<float>({.t = 2, .d = 768, .y = DType::kF32});
  check({.t = 37, .d = 256});  // CTAs of mix that walk over runs of tokens
}

// More than 128 slices: two loads per lane.
TEST(HcBoundaryEmulated, ManySlices) {
  check({.t = 1, .d = 4352});
}

// One block of tokens, partial ones, and several of which a CTA walks over.
TEST(HcBoundaryEmulated, ManyTokens) {
  check_many({.t = 33, .d = 256});
  check_many<float, float>({.t = 64, .d = 512, .y = DType::kF32, .norm = DType::kF32});
  check_many({.t = 200, .d = 256, .first = true});
  check_many<float>({.t = 257, .d = 256, .y = DType::kF32});
}

// A token's bits do not depend on the others.
TEST(HcBoundaryEmulated, ManyTokensAlone) {
  const Case c{.t = 67, .d = 256};
  Arena arena;
  const HcBoundaryArgs args = make_args(arena, c);
  arena.freeze();
  arena.prepare();
  run_many<bf16, bf16>(args, 132, 0);
  const std::vector<std::byte> together = arena.written();
  arena.prepare();
  for (int64_t i = 0; i < c.t; ++i)
    run_many<bf16, bf16>(test::one_token(args, i), 132, static_cast<uint64_t>(i));
  arena.verify();
  EXPECT_TRUE(together == arena.written());
}

}  // namespace
}  // namespace dsv4
