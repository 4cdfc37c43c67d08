// Queries of some heads have the bits that they have among all, and rows of the caches, which every
// rank writes, do not depend on the heads of a call: by every implementation that ranks take under
// --deterministic.

#include "dsv4/base/error.h"
#include "dsv4/ops/model/attention_in/attention_in_check_test.h"
#include "tests/harness/slice_check.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

using test::AttentionInShape;
using test::Slice;

Slice<AttentionInArgs> slice_of(test::Arena& arena, const AttentionInArgs& whole, int64_t begin,
                                int64_t end) {
  Slice<AttentionInArgs> slice{whole, {}};
  AttentionInArgs& args = slice.args;
  const int64_t d = whole.q.dim(2);
  args.weights.wq_b = whole.weights.wq_b.rows(begin * d, end * d);
  args.q = arena.output(whole.q.dtype, {whole.q.dim(0), end - begin, d});
  attention_in.check(args);
  slice.got_want = {{args.q, whole.q.slice(1, begin, end)}};
  for (const TensorView& same : {args.window.pages, args.entries.pages, args.state.slots,
                                 args.keys.pages, args.index_state.slots, args.index_q}) {
    if (same.rank > 0) slice.got_want.emplace_back(same, same);
  }
  return slice;
}

void check(const AttentionInShape& shape, Numerics numerics, const test::StoredAs& stored,
           Rng& rng) {
  test::AttentionInCase c(shape, numerics, stored);
  attention_in.check(c.args);
  std::vector<Slice<AttentionInArgs>> slices;
  for (const int64_t parts : {2, 5}) {
    const std::vector<int64_t> cuts = test::random_cuts(rng, shape.heads / 2, parts);
    for (size_t i = 1; i < cuts.size(); ++i)
      slices.push_back(slice_of(c.arena, c.args, 2 * cuts[i - 1], 2 * cuts[i]));
  }
  check_slices(attention_in.impls, {.numerics = numerics}, c.arena, c.args, slices,
               fmt::format("{} tokens, {} heads, ratio {}, {}, {}", shape.tokens(), shape.heads,
                           shape.ratio, name(stored), name(numerics)));
}

TEST(AttentionInSlices, HaveTheBitsOfAllHeads) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 31);
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const test::StoredAs& stored : {test::kFp8, test::kBf16, test::kKbit5}) {
      check({.runs = {{127, 1}}, .heads = 8}, numerics, stored, rng);
      check({.runs = {{0, 9}, {14, 3}}, .ratio = 4, .has_index = true, .select = true, .heads = 12},
            numerics, stored, rng);
    }
    check({.runs = {{255, 1}, {3, 40}}, .ratio = 128, .heads = 16, .row = {}}, numerics, test::kFp8,
          rng);
  }
}

#if DSV4_CUDA
// Slices of V4-Flash and V4-Pro on 2, 4 and 8 GPUs take the implementation of the whole.
TEST(AttentionInSlices, DryRunOfTheReleases) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const Context context{.need_batch_invariant = true, .device = hopper.get()};
  for (const bool pro : {false, true}) {
    for (const int ratio : {0, 4, 128}) {
      for (const int64_t t : {1, 8, 64, 200}) {
        test::Arena arena;
        Rng rng(1);
        const AttentionInShape shape{.runs = {{3, t}},
                                     .ratio = ratio,
                                     .has_index = ratio == 4,
                                     .select = ratio == 4,
                                     .hidden = pro ? 7168 : 4096,
                                     .rank = pro ? 1536 : 1024,
                                     .heads = pro ? 128 : 64,
                                     .index_heads = 64,
                                     .row = {},
                                     .index_dim = 128};
        const auto blank = [&](bool coded, int64_t n, int64_t k) {
          WeightView w{
              .format = coded ? WeightFormat::kFp8Block : WeightFormat::kBF16, .n = n, .k = k};
          w.data = arena.input(coded ? DType::kE4M3 : DType::kBF16, {n, k});
          if (coded) w.scale = arena.input(DType::kE8M0, {n / 128, k / 128});
          return w;
        };
        const AttentionInArgs whole =
            test::random_attention_in(arena, rng, shape, Numerics::kOfficial, blank);
        for (const int64_t world : {2, 4, 8}) {
          const int64_t heads = shape.heads / world;
          EXPECT_EQ(choose(attention_in, context, slice_of(arena, whole, 0, heads).args).name,
                    choose(attention_in, context, whole).name)
              << fmt::format("{} of {} heads, ratio {}, {} tokens", heads, shape.heads, ratio, t);
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace dsv4
