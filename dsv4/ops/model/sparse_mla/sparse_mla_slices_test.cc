// Some heads have the bits that they have among all, by every implementation that ranks take under
// --deterministic.

#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "tests/harness/slice_check.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

using test::Arena;
using test::Slice;

Slice<SparseMlaArgs> heads(const SparseMlaArgs& whole, int64_t begin, int64_t end) {
  Slice<SparseMlaArgs> slice{whole, {}};
  SparseMlaArgs& args = slice.args;
  args.q = whole.q.slice(2, begin, end);
  args.out = whole.out.slice(2, begin, end);
  if (!whole.sink.empty()) args.sink = whole.sink.slice(0, begin, end);
  slice.got_want = {{args.out, args.out}};
  for (TensorView* view : {&args.lse, &args.max_logits}) {
    if (view->empty()) continue;
    *view = view->slice(1, begin, end);
    slice.got_want.emplace_back(*view, *view);
  }
  sparse_mla.check(args);
  return slice;
}

// unit: heads of a group, which ranks do not cut
void check(const test::Shape& shape, int64_t unit, Numerics numerics, Rng& rng) {
  Arena arena;
  test::Outputs outputs;
  const SparseMlaArgs whole = test::make_args(arena, rng, shape, outputs);
  std::vector<Slice<SparseMlaArgs>> slices;
  for (const int64_t parts : {2, 5}) {
    const std::vector<int64_t> cuts = test::random_cuts(rng, shape.h / unit, parts);
    for (size_t i = 1; i < cuts.size(); ++i)
      slices.push_back(heads(whole, cuts[i - 1] * unit, cuts[i] * unit));
  }
  check_slices(sparse_mla.impls, {.numerics = numerics}, arena, whole, slices,
               fmt::format("{} requests, {} heads, {} + {} rows, {}", shape.t, shape.h,
                           shape.window, shape.compressed, name(numerics)));
}

TEST(SparseMlaSlices, HaveTheBitsOfAllHeads) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 21);
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    const DType dtype = numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
    for (const int64_t t : {1, 3}) {
      // Groups of the releases, at short and long lists.
      for (const int64_t h : {64, 128})
        check({.t = t,
               .h = h,
               .window = 128,
               .compressed = rng.below(300),
               .dtype = dtype,
               .rope_pairs = 32},
              8, numerics, rng);
      check({.t = t, .h = 12, .window = 20, .compressed = 40, .dtype = dtype, .lengths = true}, 2,
            numerics, rng);
    }
    check({.t = 1, .h = 64, .window = 128, .compressed = 1024, .dtype = dtype, .rope_pairs = 32}, 8,
          numerics, rng);
    check({.t = 2, .h = 10, .window = 30, .rows = test::Rows::kBF16, .dtype = dtype}, 1, numerics,
          rng);
  }
}

#if DSV4_CUDA
// Slices of V4-Flash and V4-Pro on 2, 4 and 8 GPUs take the implementation of the whole.
TEST(SparseMlaSlices, DryRunOfTheReleases) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const Context context{.need_batch_invariant = true, .device = hopper.get()};
  for (const int64_t h : {64, 128}) {
    for (const int64_t compressed : {0, 32, 512}) {
      for (const int64_t t : {1, 8, 64}) {
        Arena arena;
        Rng rng(1);
        test::Outputs outputs;
        const SparseMlaArgs whole = test::make_args(arena, rng,
                                                    {.t = t,
                                                     .h = h,
                                                     .window = 128,
                                                     .compressed = compressed,
                                                     .dtype = DType::kBF16,
                                                     .rope_pairs = 32},
                                                    outputs);
        for (const int64_t world : {2, 4, 8})
          EXPECT_EQ(choose(sparse_mla, context, heads(whole, 0, h / world).args).name,
                    choose(sparse_mla, context, whole).name)
              << fmt::format("{} of {} heads, {} rows, {} tokens", h / world, h, compressed, t);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace dsv4
