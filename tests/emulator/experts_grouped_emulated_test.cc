// Implementation sm90_grouped of experts.h on the emulator: lists, rows, gate and up, down, as a
// stream of kernels.
//
// Faults that were put back and found: no wait for the tile's h'; its counter before the stores; a
// stage of x released a step early; codes released before they are read; staging that is not waited
// for, by either side; one buffer of factors. In e4m3 also: x released before its factors are read,
// codes before they are read; staging full after one pass, or not waited for; the exponent of gate
// for up; factors of another step; codes of h' or of x without their exchange; a zero that an
// exponent changes; y in the place of other tiles' x. In the halves: every tile of an expert at its
// first pair.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "dsv4/ops/parts/experts/sm90_grouped/call.cuh"
#include "tests/emulator/experts_in_turns.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace grouped = gemm::grouped;
namespace sm90_grouped = experts_kernel::sm90_grouped;
using test::ImagesCase;
using test::ImagesShape;

struct Run {
  uint64_t seed;
  int ctas;
};
constexpr Run kRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

// All CTAs run at the same time.
template <class Weights>
emulator::Kernel products(const grouped::Params& p, const Run& how) {
  return {{.grid = how.ctas,
           .block = grouped::kThreads,
           .shared = sizeof(grouped::Shared<Weights>),
           .resident = how.ctas},
          [p] { grouped::grouped_kernel<Weights>(p); }};
}

// acc[t] += y of the pairs of token t, which are in order of expert.
void combine(const ExpertsArgs& args, const sm90_grouped::Call& call) {
  const int64_t k = slots(args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    std::vector<int32_t> pairs(call.lists.slot_of + t * k, call.lists.slot_of + (t + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (const int32_t pair : pairs)
      for (int64_t i = 0; i < args.x.dim(1); ++i)
        args.acc.row<float>(t)[i] += bf16_to_f32(call.y.row<uint16_t>(pair)[i]);
  }
}

template <int K>
using Kbit = gemm::KbitImageScaled<K>;
template <int K>
using OnGrid = gemm::KbitImageScaled<K, ImageScale::kE4M4, gemm::ScaledTable::kE4m3>;
using Mxfp4 = gemm::KbitImageScaled<4, ImageScale::kUe8m0>;
using Nvfp4 = gemm::KbitImageScaled<4, ImageScale::kE4M3>;
using Folded = gemm::KbitImageFolded;

// The table that the kernel of these weights reads. Codebooks of the cases are on the e4m3 grid, so
// the kernels for others would not be chosen for them.
template <class Weights>
void take_table(grouped::Product& product, const Codebook& book, ImageScale scale) {
  if constexpr (!std::is_same_v<Weights, Folded>) {
    product.table = Weights::kFp4 ? gemm::make_bf16_table(book)
                    : Weights::kTableKind == gemm::ScaledTable::kE4m3
                        ? gemm::make_e4m3_table(book)
                        : gemm::make_f16_table(book, gemm::kScaledTop);
    product.factor = gemm::scaled_factor(scale) * product.table.unit;
  }
}

// Lists, and `rows` rows of x.
std::vector<emulator::Kernel> rows_of(const sm90_grouped::Call& call, int64_t rows) {
  const emulator::Launch list{
      .grid = call.lists.ctas, .block = sm90_grouped::kListThreads, .pdl = true};
  return {{list, [&] { sm90_grouped::count_kernel(call.choices, call.lists); }},
          {list, [&] { sm90_grouped::place_kernel(call.choices, call.lists); }},
          {{.grid = static_cast<int>(rows), .block = sm90_grouped::kRowThreads, .pdl = true},
           [&] { sm90_grouped::rows_kernel(call.rows); }}};
}

// Up: of gate and up. in_turns: if its images are those of `args`
template <class Up, class Down>
void run_emulated(const ExpertsArgs& args, const Run& how,
                  const emulator::ExpertsInTurns* in_turns = nullptr) {
  Scratch scratch;
  constexpr bool kFolded = std::is_same_v<Up, Folded> || std::is_same_v<Down, Folded>;
  const sm90_grouped::Call call = sm90_grouped::make_call(args, kFolded, scratch);
  std::vector<emulator::Kernel> kernels = rows_of(call, args.x.dim(0));
  const ExpertImages& images = args.stack.images();
  for (int turn = 0; turn < images.num_turns(); ++turn) {
    grouped::Params p = call.of_turn(turn);
    take_table<Up>(p.gate_up, images.gate_up_codebook, images.gate_up.scale);
    take_table<Down>(p.down, images.down_codebook, images.down.scale);
    if (in_turns != nullptr) kernels.push_back(in_turns->bring(turn));
    p.has_down = std::is_same_v<Up, Down>;
    kernels.push_back(products<Up>(p, how));
    if (p.has_down) continue;
    p.has_gate_up = false, p.has_down = true;
    kernels.push_back(products<Down>(p, how));
  }
  if (in_turns == nullptr)
    kernels.insert(kernels.begin(), emulator::touching(test::placed(images)));
  emulator::launch_stream(kernels, how.seed);
  combine(args, call);
}

template <class Up, class Down = Up>
void check(const ImagesShape& s, const test::ImageSource& up, const test::ImageSource& down) {
  SCOPED_TRACE(fmt::format("K={} t={} k={} e={} d={} i={}", up.bits, s.t, s.k, s.e, s.d, s.inner));
  ImagesCase c(s, up, down);
  const std::vector<double> want = experts_oracle({}, c.file_args);
  emulator::check_runs(
      c.arena, static_cast<int>(std::size(kRuns)),
      [&](int i) { run_emulated<Up, Down>(c.args, kRuns[i]); },
      [&] { EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 5e-6}), ""); });
}
template <int K>
void check(const ImagesShape& s) {
  check<Kbit<K>>(s, K, K);
}

// acc, which was zero, after the first `tokens` tokens.
template <class Weights>
std::vector<float> result_of(const ImagesCase& c, int64_t tokens, const Run& how,
                             const emulator::ExpertsInTurns* in_turns = nullptr) {
  ExpertsArgs args = c.args;
  const TensorView acc = c.args.acc.slice(0, 0, tokens);
  args.x = args.x.slice(0, 0, tokens), args.acc = acc;
  args.experts = args.experts.slice(0, 0, tokens), args.weights = args.weights.slice(0, 0, tokens);
  std::fill_n(acc.as<float>(), acc.numel(), 0.f);
  run_emulated<Weights, Weights>(args, how, in_turns);
  return {acc.as<float>(), acc.as<float>() + acc.numel()};
}

template <class Weights>
void run_hidden(const ExpertsHiddenArgs& args, const Run& how) {
  Scratch scratch;
  const sm90_grouped::Call call =
      sm90_grouped::make_hidden_call(args, std::is_same_v<Weights, Folded>, scratch);
  std::vector<emulator::Kernel> kernels = rows_of(call, args.x.dim(0));
  const ExpertImages& images = args.stack.images();
  grouped::Params p = call.products;
  take_table<Weights>(p.gate_up, images.gate_up_codebook, images.gate_up.scale);
  kernels.push_back(products<Weights>(p, how));
  kernels.insert(kernels.begin(), emulator::touching({args.experts, args.weights, args.x}));
  emulator::launch_stream(kernels, how.seed);
}

template <class Weights>
void run_output(const ExpertsOutputArgs& args, const Run& how) {
  Scratch scratch;
  const sm90_grouped::Call call =
      sm90_grouped::make_output_call(args, std::is_same_v<Weights, Folded>, scratch);
  std::vector<emulator::Kernel> kernels = rows_of(call, args.hidden.dim(0));
  const ExpertImages& images = args.stack.images();
  grouped::Params p = call.products;
  take_table<Weights>(p.down, images.down_codebook, images.down.scale);
  kernels.push_back(products<Weights>(p, how));
  kernels.insert(kernels.begin(), emulator::touching({args.experts, args.hidden}));
  emulator::launch_stream(kernels, how.seed);
  if (!args.rows.empty()) return;
  combine({.x = args.acc, .experts = args.experts, .acc = args.acc}, call);
}

// The halves, of ranks that have some rows of w1, w3 and w2 each: the bits of the whole.
template <class Weights>
void expect_bits_in_slices(const ImagesShape& s, const test::ImageSource& source,
                           const std::vector<int64_t>& inner_ends,
                           const std::vector<int64_t>& ends) {
  SCOPED_TRACE(
      fmt::format("{} t={} k={} e={} d={} i={}", name(source), s.t, s.k, s.e, s.d, s.inner));
  ImagesCase c(s, source, source);
  const std::vector<float> whole = result_of<Weights>(c, s.t, kRuns[1]);
  const Buffer hidden(DType::kBF16, {s.t * s.k, s.inner}), acc(DType::kF32, {s.t, s.d});
  const test::RankImages ranks(c, inner_ends, ends);
  for (size_t r = 0; r < ends.size(); ++r)
    run_hidden<Weights>({.x = c.args.x,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .weights = c.args.weights,
                         .swiglu_limit = c.args.swiglu_limit,
                         .hidden = ranks.columns(hidden, inner_ends, r)},
                        kRuns[r % std::size(kRuns)]);
  for (size_t r = 0; r < ends.size(); ++r)
    run_output<Weights>({.hidden = hidden,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .acc = ranks.columns(acc, ends, r)},
                        kRuns[(r + 1) % std::size(kRuns)]);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), acc.as<float>()));
}

// Ranks that have whole experts each: the bits of the whole.
template <class Weights>
void expect_bits_of_whole_experts(const ImagesShape& s, const test::ImageSource& source,
                                  const std::vector<int64_t>& ends) {
  SCOPED_TRACE(fmt::format("{} t={} e={} d={} i={}", name(source), s.t, s.e, s.d, s.inner));
  ImagesCase c(s, source, source);
  const std::vector<float> whole = result_of<Weights>(c, s.t, kRuns[1]);
  const Buffer all(DType::kBF16, {s.t * s.k, s.d}), acc(DType::kF32, {s.t, s.d});
  test::run_whole_experts(
      c, ends, all,
      [&](size_t r, const ExpertStack& stack, const TensorView& hidden, const TensorView& rows) {
        run_hidden<Weights>({.x = c.args.x,
                             .stack = stack,
                             .experts = c.args.experts,
                             .weights = c.args.weights,
                             .swiglu_limit = c.args.swiglu_limit,
                             .hidden = hidden},
                            kRuns[r % std::size(kRuns)]);
        run_output<Weights>(
            {.hidden = hidden, .stack = stack, .experts = c.args.experts, .rows = rows},
            kRuns[(r + 1) % std::size(kRuns)]);
      });
  test::sum_rows(all, c.args.experts, acc);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), acc.as<float>()));
}

template <class Weights>
void expect_same_bits(const test::ImageSource& source) {
  const ImagesCase c({.t = 150, .k = 1, .e = 2, .d = 288, .inner = 288, .only = 1}, source, source);
  const std::vector<float> together = result_of<Weights>(c, 150, kRuns[1]);
  for (const int64_t tokens : {1, 2, 17, 100}) {
    const std::vector<float> few = result_of<Weights>(c, tokens, kRuns[0]);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), together.begin())) << tokens;
  }
}

// Each expert in memory of its own, which a kernel before wrote: the same bits.
template <class Weights>
void expect_same_bits_anywhere(const ImagesShape& shape, const test::ImageSource& source) {
  ImagesCase c(shape, source, source);
  const std::vector<float> together = result_of<Weights>(c, shape.t, kRuns[1]);
  c.args.stack = test::scattered(c.arena, c.args.stack.images());
  for (const Run& how : kRuns)
    EXPECT_TRUE(result_of<Weights>(c, shape.t, how) == together) << "run " << how.seed;
}

TEST(ExpertsGroupedEmulated, ReadsExpertsThroughATable) {
  const ImagesShape shape{.t = 20, .k = 2, .e = 4, .d = 288, .inner = 160};
  expect_same_bits_anywhere<Kbit<3>>(shape, 3);
  expect_same_bits_anywhere<OnGrid<3>>(shape, 3);
  expect_same_bits_anywhere<Mxfp4>(shape, WeightFormat::kMxfp4);
  expect_same_bits_anywhere<Folded>({.t = 20, .k = 2, .e = 4, .d = 288, .inner = 288},
                                    WeightFormat::kMxfp4);
}

// Turns whose experts share their memory: the bits of all experts at once.
template <class Weights>
void expect_same_bits_in_turns(const ImagesShape& shape, const test::ImageSource& source) {
  for (const int turns : {1, 2, 7}) {
    SCOPED_TRACE(turns);
    ImagesCase c(shape, source, source);
    const std::vector<float> together = result_of<Weights>(c, shape.t, kRuns[1]);
    emulator::ExpertsInTurns in_turns(c.arena, c.args.stack.images(), turns, 5);
    c.args.stack = in_turns.images();
    for (const Run& how : kRuns)
      EXPECT_TRUE(result_of<Weights>(c, shape.t, how, &in_turns) == together) << how.seed;
  }
}

// Tiles of several sizes, and several of an expert.
TEST(ExpertsGroupedEmulated, ExpertsInTurnsHaveTheSameBits) {
  const ImagesShape shape{.t = 20, .k = 3, .e = 6, .d = 288, .inner = 160};
  expect_same_bits_in_turns<Kbit<3>>(shape, 3);
  expect_same_bits_in_turns<Mxfp4>(shape, WeightFormat::kMxfp4);
  expect_same_bits_in_turns<Folded>({.t = 150, .k = 2, .e = 3, .d = 288, .inner = 288},
                                    WeightFormat::kMxfp4);
}

// Ids of no expert are pairs of expert 0 with weight 0: the sum has what the others give.
TEST(ExpertsGroupedEmulated, IdsOfNoExpertAddNothing) {
  const ImagesCase c({.t = 20, .k = 3, .e = 4, .d = 288, .inner = 160}, 3, 3);
  test::break_choices(c);
  const std::vector<float> got = result_of<Kbit<3>>(c, 20, kRuns[1]);
  test::mend_choices(c);
  EXPECT_TRUE(got == result_of<Kbit<3>>(c, 20, kRuns[1]));
}

TEST(ExpertsGroupedEmulated, EveryK) {
  check<2>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check<3>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check<4>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64});
  check<5>({.t = 5, .k = 2, .e = 3, .d = 96, .inner = 160});
}

TEST(ExpertsGroupedEmulated, CodebooksOnTheE4m3Grid) {
  check<OnGrid<2>>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96}, 2, 2);
  check<OnGrid<3>>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352}, 3, 3);
  check<OnGrid<4>>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64}, 4, 4);
  const ImagesCase c({.t = 2, .k = 1, .e = 2, .d = 64, .inner = 32}, 3, 3);
  const ExpertImages& images = c.args.stack.images();
  using gemm::scaled_table, gemm::ScaledTable;
  EXPECT_EQ(scaled_table(images.down_codebook, ImageScale::kE4M4), ScaledTable::kE4m3);
  EXPECT_EQ(scaled_table(bnf_codebook(3), ImageScale::kE4M4), ScaledTable::kTwoBytes);
  EXPECT_EQ(scaled_table(e2m1_codebook(), ImageScale::kUe8m0), ScaledTable::kTwoBytes);
}

// 897 pairs are 8 tiles of 128 columns, 127 more than pairs.
TEST(ExpertsGroupedEmulated, ThereIsRoomForTheTilesOfAnyNumberOfPairs) {
  for (int pairs = 0; pairs <= 5000; ++pairs) {
    const sm90_grouped::Split split(pairs);
    EXPECT_GE(split.tiles * split.pairs, pairs);
    EXPECT_LE(split.columns, grouped::kMostColumns);
    EXPECT_LE(split.tiles, sm90_grouped::max_tiles(pairs, 1)) << pairs;
    EXPECT_LE(split.tiles * split.columns, sm90_grouped::max_slots(pairs, 1)) << pairs;
  }
}

// Tiles of every number of columns, and two to three tiles of an expert.
TEST(ExpertsGroupedEmulated, TilesOfEverySize) {
  for (const int64_t t : {1, 16, 17, 40, 64, 70, 90, 100, 113, 128, 129, 200, 257})
    check<3>({.t = t, .k = 1, .e = 3, .d = 96, .inner = 32, .only = 1});
}

// Two CTAs list 1,100 pairs.
TEST(ExpertsGroupedEmulated, PairsOfSeveralLists) {
  check<2>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 32});
}

// Several tiles of rows, several units, an item that ends in the middle of a row tile.
TEST(ExpertsGroupedEmulated, SeveralRowTiles) {
  check<3>({.t = 7, .k = 2, .e = 3, .d = 800, .inner = 288});
}

TEST(ExpertsGroupedEmulated, Fp4) {
  const ImagesShape shapes[] = {{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352},
                                {.t = 140, .k = 1, .e = 2, .d = 96, .inner = 64, .only = 1}};
  for (const ImagesShape& s : shapes) {
    check<Mxfp4>(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
    check<Nvfp4>(s, WeightFormat::kNvfp4, WeightFormat::kNvfp4);
  }
}

// Exponents of one number, and of all that e4m3 operands hold.
TEST(ExpertsGroupedEmulated, Mxfp4WithFoldedScales) {
  const ImagesShape shapes[] = {
      {.t = 9, .k = 3, .e = 4, .d = 416, .inner = 352, .exponents = 1},
      {.t = 140, .k = 1, .e = 2, .d = 288, .inner = 512, .only = 1, .exponents = 12},
      {.t = 40, .k = 1, .e = 2, .d = 800, .inner = 288, .only = 0, .exponents = 12},
      {.t = 5, .k = 2, .e = 3, .d = 512, .inner = 1024, .exponents = 7}};
  for (const ImagesShape& s : shapes) check<Folded>(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
}

TEST(ExpertsGroupedEmulated, FoldedTilesOfEverySize) {
  for (const int64_t t : {1, 16, 17, 40, 64, 70, 90, 100, 113, 128, 129, 257})
    check<Folded>({.t = t, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1, .exponents = 12},
                  WeightFormat::kMxfp4, WeightFormat::kMxfp4);
}

// The two products are two launches, and h' is in the type of down's operands.
TEST(ExpertsGroupedEmulated, DifferentImages) {
  const ImagesShape s{.t = 7, .k = 2, .e = 3, .d = 288, .inner = 160};
  check<Kbit<3>, Kbit<4>>(s, 3, 4);
  check<Kbit<3>, Nvfp4>(s, 3, WeightFormat::kNvfp4);
  check<Mxfp4, Kbit<2>>(s, WeightFormat::kMxfp4, 2);
  const ImagesShape even{.t = 7, .k = 2, .e = 3, .d = 288, .inner = 288};
  check<Kbit<3>, Folded>(even, 3, WeightFormat::kMxfp4);
  check<Folded, Nvfp4>(even, WeightFormat::kMxfp4, WeightFormat::kNvfp4);
}

// Several tiles of an expert, pairs of two lists, and row tiles that end within a slice.
TEST(ExpertsGroupedEmulated, HalvesOfSlicesHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352};
  const ImagesShape tiles{.t = 140, .k = 1, .e = 2, .d = 288, .inner = 288, .only = 1};
  expect_bits_in_slices<Kbit<3>>(few, 3, {128, 352}, {384, 544});
  expect_bits_in_slices<Kbit<2>>(tiles, 2, {288}, {288});
  expect_bits_in_slices<OnGrid<4>>(few, 4, {128, 256, 352}, {128, 256, 544});
  expect_bits_in_slices<Mxfp4>(few, WeightFormat::kMxfp4, {256, 352}, {128, 544});
  expect_bits_in_slices<Mxfp4>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 160},
                               WeightFormat::kMxfp4, {128, 160}, {16, 32});
  expect_bits_in_slices<Nvfp4>(few, WeightFormat::kNvfp4, {128, 352}, {256, 544});
  const ImagesShape even{.t = 40, .k = 2, .e = 3, .d = 416, .inner = 480, .exponents = 12};
  expect_bits_in_slices<Folded>(even, WeightFormat::kMxfp4, {128, 384, 480}, {256, 384, 416});
  ImagesShape folded_tiles = tiles;
  folded_tiles.exponents = 12;
  expect_bits_in_slices<Folded>(folded_tiles, WeightFormat::kMxfp4, {256, 288}, {128, 288});
}

// Tiles of several sizes, several of an expert, pairs of two lists, and a rank without pairs.
TEST(ExpertsGroupedEmulated, HalvesOfWholeExpertsHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 9, .k = 3, .e = 5, .d = 544, .inner = 352};
  const ImagesShape tiles{.t = 140, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1};
  expect_bits_of_whole_experts<Kbit<3>>(few, 3, {2, 5});
  expect_bits_of_whole_experts<Kbit<2>>(tiles, 2, {1, 2, 3});
  expect_bits_of_whole_experts<OnGrid<4>>(few, 4, {1, 3, 5});
  expect_bits_of_whole_experts<Mxfp4>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 160},
                                      WeightFormat::kMxfp4, {3, 4, 7});
  expect_bits_of_whole_experts<Nvfp4>(few, WeightFormat::kNvfp4, {4, 5});
  const ImagesShape even{.t = 40, .k = 2, .e = 4, .d = 416, .inner = 480, .exponents = 12};
  expect_bits_of_whole_experts<Folded>(even, WeightFormat::kMxfp4, {2, 4});
}

TEST(ExpertsGroupedEmulated, BitsDoNotDependOnTheBatch) {
  expect_same_bits<Kbit<3>>(3);
  expect_same_bits<OnGrid<3>>(3);
  expect_same_bits<Mxfp4>(WeightFormat::kMxfp4);
  expect_same_bits<Folded>(WeightFormat::kMxfp4);
}

}  // namespace
}  // namespace dsv4
