// Implementations sm90_few, sm90_few_e4m3 and sm90_wide of experts.h on the emulator: list of
// pairs, gate and up, down, as a stream of kernels that start early; and of halves.h.
//
// Faults that were put back and found in the halves: down lists its pairs before the kernel before
// it is complete; it stores no places of the pairs; it relies on ids that the first half has not
// waited for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/kbit/import_mxfp4.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/halves_call.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "tests/emulator/experts_few_runs.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

using emulator::combine, emulator::E4M3, emulator::F16, emulator::Fp4, emulator::kernel;
using emulator::kFewRuns, emulator::list_of, emulator::result_of, emulator::Run, emulator::Wide;
using gemm::experts::Params;
using test::ImagesCase;
using test::ImagesShape;

template <class Kernels>
void check_kernels(const ImagesShape& shape, const test::ImageSource& source) {
  ImagesCase c(shape, source, source);
  const std::vector<double> want = experts_oracle({}, c.file_args);
  emulator::check_runs(
      c.arena, static_cast<int>(std::size(kFewRuns)),
      [&](int i) { emulator::run_few<Kernels>(c.args, kFewRuns[i]); },
      [&] { EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 5e-6}), ""); });
}

std::string text(int bits, const ImagesShape& s) {
  return fmt::format("K={} t={} k={} e={} d={} i={}", bits, s.t, s.k, s.e, s.d, s.inner);
}

template <int K>
void check(const ImagesShape& shape) {
  SCOPED_TRACE(text(K, shape));
  check_kernels<F16<K>>(shape, K);
  if constexpr (K < 5) check_kernels<E4M3<K>>(shape, K);
}

template <int K>
void check_wide(const ImagesShape& shape) {
  SCOPED_TRACE(text(K, shape));
  check_kernels<Wide<K>>(shape, K);
}

// The bits of each token are those that it has with all of the others.
template <class Kernels>
void expect_same_bits(const ImagesCase& c, std::initializer_list<int64_t> batches) {
  const std::vector<float> together = result_of<Kernels>(c, c.args.x.dim(0), kFewRuns[1]);
  for (const int64_t tokens : batches) {
    const std::vector<float> few = result_of<Kernels>(c, tokens, kFewRuns[0]);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), together.begin())) << tokens;
  }
}

TEST(ExpertsFewEmulated, EveryK) {
  check<2>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check<3>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check<4>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64});
  check<5>({.t = 5, .k = 2, .e = 3, .d = 96, .inner = 160});
}

// 16 chunks in gate and up: a strip a stage, and more stages than the ring has.
TEST(ExpertsFewEmulated, WideRows) {
  check<3>({.t = 2, .k = 2, .e = 3, .d = 4096, .inner = 64});
}

// Entries of 1, 3, 8 and 9 pairs of one expert; 33 pairs are one more than kernels list themselves.
TEST(ExpertsFewEmulated, AllTokensToOneExpert) {
  for (const int64_t t : {1, 3, 8, 9, 17, 33})
    check<3>({.t = t, .k = 1, .e = 5, .d = 160, .inner = 96, .only = 3});
}

// An entry of up to 2, 4 or 8 pairs of an expert: a token's bits are the same in each.
TEST(ExpertsFewEmulated, BitsDoNotDependOnTheBatch) {
  const ImagesCase c({.t = 7, .k = 1, .e = 2, .d = 544, .inner = 96, .only = 1}, 3, 3);
  expect_same_bits<E4M3<3>>(c, {1, 2, 3, 4, 5});
}

// V4-Pro: 28 chunks in gate and up are 7 steps; 3,072 columns in down. 5,216 and 7,136 columns end
// within a step, 224 within the first.
TEST(ExpertsFewEmulated, WideExperts) {
  check_wide<2>({.t = 2, .k = 2, .e = 3, .d = 7168, .inner = 64});
  check_wide<3>({.t = 1, .k = 2, .e = 3, .d = 7136, .inner = 96});
  check_wide<4>({.t = 3, .k = 1, .e = 2, .d = 5216, .inner = 96});
  check_wide<2>({.t = 2, .k = 1, .e = 2, .d = 224, .inner = 3072});
}

// Entries of 1, 2, 8 and 9 pairs; 33 pairs are listed by a kernel.
TEST(ExpertsFewEmulated, TokensOfOneWideExpert) {
  for (const int64_t t : {1, 2, 8, 9, 33})
    check_wide<2>({.t = t, .k = 1, .e = 4, .d = 4128, .inner = 32, .only = 2});
}

TEST(ExpertsFewEmulated, BitsOfWideExpertsDoNotDependOnTheBatch) {
  const ImagesCase c({.t = 9, .k = 1, .e = 2, .d = 7168, .inner = 32, .only = 1}, 2, 2);
  expect_same_bits<Wide<2>>(c, {1, 2, 3, 5, 8});
}

// Where both take a call, the room for columns changes no bit.
TEST(ExpertsFewEmulated, WideInstancesHaveTheBitsOfTheOthers) {
  const ImagesCase c({.t = 5, .k = 2, .e = 3, .d = 1312, .inner = 96}, 3, 3);
  EXPECT_TRUE(result_of<Wide<3>>(c, 5, kFewRuns[1]) == result_of<E4M3<3>>(c, 5, kFewRuns[1]));
}

// The lists of both halves.
emulator::Kernel lists_of(const experts_kernel::HalfCall& first,
                          const experts_kernel::HalfCall& second) {
  return {{.grid = 2, .block = gemm::experts::kListThreads, .pdl = true}, [=] {
            gemm::experts::list_halves_kernel<>(first.choices, first.lists, second.choices,
                                                second.lists);
          }};
}

template <class Kernels>
void run_hidden(const ExpertsHiddenArgs& args, const Run& how) {
  Scratch scratch;
  const experts_kernel::HalfCall call =
      experts_kernel::make_hidden_call(args, how.ctas, Kernels::kReader, scratch);
  std::vector<emulator::Kernel> kernels{emulator::touching({args.experts, args.weights, args.x})};
  if (call.needs_list() && args.first != nullptr) {
    const experts_kernel::HalfCall second =
        experts_kernel::make_kept_list(args, how.ctas, Kernels::kReader, *args.first);
    kernels.push_back(lists_of(call, second));
  } else if (call.needs_list()) {
    kernels.push_back(list_of(call.choices, call.lists));
  }
  kernels.push_back(kernel<Kernels, true>(call.product, how));
  emulator::launch_stream(kernels, how.seed);
}

// Stands for the last kernel of the first half.
emulator::Kernel waiting_first() {
  return {{.pdl = true}, [] {
            ptx::griddepcontrol_wait();
            ptx::griddepcontrol_launch_dependents();
          }};
}

template <class Kernels>
void run_output(const ExpertsOutputArgs& args, const Run& how) {
  Scratch scratch;
  const experts_kernel::HalfCall call =
      experts_kernel::make_output_call(args, how.ctas, Kernels::kReader, scratch);
  std::vector<emulator::Kernel> kernels{emulator::touching({args.experts})};
  if (args.first.ids_are_complete) kernels.push_back(waiting_first());
  kernels.push_back(emulator::touching({args.hidden}));
  if (call.launches_list()) kernels.push_back(list_of(call.choices, call.lists));
  kernels.push_back(kernel<Kernels, false>(call.product, how));
  emulator::launch_stream(kernels, how.seed);
  if (!args.rows.empty()) return;
  combine({.x = args.acc, .experts = args.experts, .acc = args.acc},
          {.lists = call.lists, .hidden = {}, .y = call.y, .gate_up = {}, .down = {}});
}

// The halves, of ranks that have some rows of w1, w3 and w2 each: the bits of the whole.
template <class Kernels>
void expect_bits_in_slices(const ImagesShape& s, const test::ImageSource& source,
                           const std::vector<int64_t>& inner_ends,
                           const std::vector<int64_t>& ends) {
  SCOPED_TRACE(text(source.bits, s));
  ImagesCase c(s, source, source);
  const std::vector<float> whole = result_of<Kernels>(c, s.t, kFewRuns[1]);
  const Buffer hidden(DType::kBF16, {s.t * s.k, s.inner}), acc(DType::kF32, {s.t, s.d});
  const test::RankImages ranks(c, inner_ends, ends);
  for (size_t r = 0; r < ends.size(); ++r)
    run_hidden<Kernels>({.x = c.args.x,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .weights = c.args.weights,
                         .swiglu_limit = c.args.swiglu_limit,
                         .hidden = ranks.columns(hidden, inner_ends, r)},
                        kFewRuns[r % std::size(kFewRuns)]);
  for (size_t r = 0; r < ends.size(); ++r)
    run_output<Kernels>({.hidden = hidden,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .acc = ranks.columns(acc, ends, r)},
                        kFewRuns[(r + 1) % std::size(kFewRuns)]);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), acc.as<float>()));
  // Rows of y that are summed later give these bits, too, with the list that a first half made.
  const Buffer rows(DType::kBF16, {s.t * s.k, s.d}), sum(DType::kF32, {s.t, s.d});
  for (size_t r = 0; r < ends.size(); ++r) {
    Scratch kept;
    FirstHalf first{.ids_are_complete = true, .keep = &kept};
    const Run how = kFewRuns[(r + 2) % std::size(kFewRuns)];
    run_hidden<Kernels>({.x = c.args.x,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .weights = c.args.weights,
                         .swiglu_limit = c.args.swiglu_limit,
                         .hidden = ranks.columns(hidden, inner_ends, r),
                         .first = r % 2 == 0 ? &first : nullptr},
                        how);
    run_output<Kernels>({.hidden = hidden,
                         .stack = ranks.stacks[r],
                         .experts = c.args.experts,
                         .rows = ranks.columns(rows, ends, r),
                         .first = first},
                        how);
  }
  test::sum_rows(rows, c.args.experts, sum);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), sum.as<float>()));
}

TEST(ExpertsFewEmulated, HalvesOfSlicesHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96};
  const ImagesShape many{.t = 9, .k = 4, .e = 4, .d = 544, .inner = 352};  // listed by a kernel
  expect_bits_in_slices<F16<3>>(few, 3, {64, 96}, {128, 288});
  expect_bits_in_slices<F16<2>>(many, 2, {128, 352}, {256, 544});
  expect_bits_in_slices<E4M3<3>>(few, 3, {32, 96}, {160, 288});
  expect_bits_in_slices<E4M3<4>>(many, 4, {128, 256, 352}, {128, 384, 544});
  expect_bits_in_slices<Fp4<WeightFormat::kMxfp4>>(few, WeightFormat::kMxfp4, {96}, {288});
  expect_bits_in_slices<Fp4<WeightFormat::kMxfp4>>(many, WeightFormat::kMxfp4, {128, 352},
                                                   {384, 544});
  expect_bits_in_slices<Fp4<WeightFormat::kNvfp4>>(many, WeightFormat::kNvfp4, {256, 352},
                                                   {128, 544});
}

// Ranks that have whole experts each: the bits of the whole.
template <class Kernels>
void expect_bits_of_whole_experts(const ImagesShape& s, const test::ImageSource& source,
                                  const std::vector<int64_t>& ends) {
  SCOPED_TRACE(text(source.bits, s));
  ImagesCase c(s, source, source);
  const std::vector<float> whole = result_of<Kernels>(c, s.t, kFewRuns[1]);
  const Buffer all(DType::kBF16, {s.t * s.k, s.d}), acc(DType::kF32, {s.t, s.d});
  test::run_whole_experts(
      c, ends, all,
      [&](size_t r, const ExpertStack& stack, const TensorView& hidden, const TensorView& rows) {
        run_hidden<Kernels>({.x = c.args.x,
                             .stack = stack,
                             .experts = c.args.experts,
                             .weights = c.args.weights,
                             .swiglu_limit = c.args.swiglu_limit,
                             .hidden = hidden},
                            kFewRuns[r % std::size(kFewRuns)]);
        run_output<Kernels>({.hidden = hidden,
                             .stack = stack,
                             .experts = c.args.experts,
                             .rows = rows,
                             .first = {.ids_are_complete = s.t % 2 == 1}},
                            kFewRuns[(r + 1) % std::size(kFewRuns)]);
      });
  test::sum_rows(all, c.args.experts, acc);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), acc.as<float>()));
}

// The second has pairs for a kernel to list; a rank with one expert, and one that no token chose.
TEST(ExpertsFewEmulated, HalvesOfWholeExpertsHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 3, .k = 2, .e = 5, .d = 288, .inner = 96};
  const ImagesShape many{.t = 9, .k = 4, .e = 7, .d = 544, .inner = 352};
  expect_bits_of_whole_experts<F16<3>>(few, 3, {2, 5});
  expect_bits_of_whole_experts<F16<2>>(many, 2, {1, 4, 7});
  expect_bits_of_whole_experts<E4M3<3>>(few, 3, {1, 3, 5});
  expect_bits_of_whole_experts<E4M3<4>>(many, 4, {3, 7});
  expect_bits_of_whole_experts<Fp4<WeightFormat::kMxfp4>>(few, WeightFormat::kMxfp4, {5});
  expect_bits_of_whole_experts<Fp4<WeightFormat::kMxfp4>>(many, WeightFormat::kMxfp4, {2, 4, 7});
  expect_bits_of_whole_experts<Fp4<WeightFormat::kNvfp4>>(many, WeightFormat::kNvfp4, {4, 7});
  expect_bits_of_whole_experts<Fp4<WeightFormat::kMxfp4>>(
      {.t = 40, .k = 1, .e = 4, .d = 160, .inner = 96, .only = 2}, WeightFormat::kMxfp4, {2, 4});
}

// Each expert in memory of its own, which a kernel before wrote: the same bits.
template <class Kernels>
void expect_same_bits_anywhere(const ImagesShape& shape, const test::ImageSource& source) {
  SCOPED_TRACE(text(source.bits, shape));
  ImagesCase c(shape, source, source);
  const std::vector<float> together = result_of<Kernels>(c, shape.t, kFewRuns[1]);
  c.args.stack = test::scattered(c.arena, c.args.stack.images());
  for (const Run& how : kFewRuns)
    EXPECT_TRUE(result_of<Kernels>(c, shape.t, how) == together) << "run " << how.seed;
}

// Several entries, strips and stages; 33 pairs are listed by a kernel.
TEST(ExpertsFewEmulated, ReadsExpertsThroughATable) {
  const ImagesShape few{.t = 3, .k = 2, .e = 5, .d = 288, .inner = 96};
  expect_same_bits_anywhere<F16<3>>(few, 3);
  expect_same_bits_anywhere<E4M3<3>>(few, 3);
  expect_same_bits_anywhere<E4M3<3>>({.t = 11, .k = 3, .e = 4, .d = 160, .inner = 96}, 3);
  expect_same_bits_anywhere<Fp4<WeightFormat::kMxfp4>>(few, WeightFormat::kMxfp4);
  expect_same_bits_anywhere<Wide<2>>({.t = 1, .k = 2, .e = 3, .d = 5216, .inner = 32}, 2);
}

// The sum has what the other choices of a token give; lists of kernels and of their own.
template <class Kernels>
void expect_none_adds_nothing(const ImagesShape& shape, const test::ImageSource& source) {
  SCOPED_TRACE(text(source.bits, shape));
  const ImagesCase c(shape, source, source);
  test::break_choices(c);
  const std::vector<float> got = result_of<Kernels>(c, shape.t, kFewRuns[1]);
  test::mend_choices(c);
  EXPECT_TRUE(got == result_of<Kernels>(c, shape.t, kFewRuns[1]));
}
TEST(ExpertsFewEmulated, IdsOfNoExpertAddNothing) {
  expect_none_adds_nothing<F16<3>>({.t = 3, .k = 2, .e = 5, .d = 288, .inner = 96}, 3);
  expect_none_adds_nothing<E4M3<3>>({.t = 3, .k = 2, .e = 5, .d = 288, .inner = 96}, 3);
  expect_none_adds_nothing<E4M3<3>>({.t = 11, .k = 4, .e = 4, .d = 160, .inner = 96}, 3);
}

constexpr WeightFormat kFp4[] = {WeightFormat::kMxfp4, WeightFormat::kNvfp4};
template <int kColumns = gemm::experts_e4m3::kMaxColumns>
void check_fp4(const ImagesShape& shape) {
  SCOPED_TRACE(text(4, shape));
  check_kernels<Fp4<kFp4[0], kColumns>>(shape, kFp4[0]);
  check_kernels<Fp4<kFp4[1], kColumns>>(shape, kFp4[1]);
}

TEST(ExpertsFewEmulated, Fp4) {
  check_fp4({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check_fp4({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check_fp4({.t = 1, .k = 6, .e = 9, .d = 1312, .inner = 64});
  check_fp4({.t = 2, .k = 2, .e = 3, .d = 4096, .inner = 64});
}

// NVFP4 has at most 4 pairs in an entry. 33 pairs are listed by a kernel.
TEST(ExpertsFewEmulated, TokensOfOneFp4Expert) {
  for (const int64_t t : {2, 3, 4, 5, 8, 9, 17, 33})
    check_fp4({.t = t, .k = 1, .e = 5, .d = 160, .inner = 96, .only = 3});
}

TEST(ExpertsFewEmulated, WideFp4Experts) {
  constexpr int kWide = gemm::experts_e4m3::kWideColumns;
  check_fp4<kWide>({.t = 2, .k = 2, .e = 3, .d = 7168, .inner = 64});
  check_fp4<kWide>({.t = 5, .k = 1, .e = 2, .d = 5216, .inner = 96, .only = 1});
}

TEST(ExpertsFewEmulated, BitsOfFp4DoNotDependOnTheBatch) {
  const ImagesShape shape{.t = 9, .k = 1, .e = 2, .d = 544, .inner = 96, .only = 1};
  expect_same_bits<Fp4<kFp4[0]>>(ImagesCase(shape, kFp4[0], kFp4[0]), {1, 2, 3, 4, 5, 8});
  expect_same_bits<Fp4<kFp4[1]>>(ImagesCase(shape, kFp4[1], kFp4[1]), {1, 2, 3, 4, 5, 8});
}

// Gate and up of K = 3, down in NVFP4.
struct Nvfp4BesideKbit : Fp4<WeightFormat::kNvfp4> {
  template <bool kGateUp>
  using Of = std::conditional_t<kGateUp, E4M3<3>, Fp4<WeightFormat::kNvfp4>>;
  template <bool kGateUp>
  using Shared = typename Of<kGateUp>::template Shared<kGateUp>;
  template <bool kGateUp>
  static void run(const Params& p) {
    Of<kGateUp>::template run<kGateUp>(p);
  }
};

// Both products have entries of at most 4 pairs then.
TEST(ExpertsFewEmulated, Fp4BesideKbit) {
  for (const int64_t t : {7, 33}) {
    ImagesCase c({.t = t, .k = 1, .e = 2, .d = 160, .inner = 96, .only = 0}, 3, kFp4[1]);
    std::fill_n(c.args.acc.as<float>(), c.args.acc.numel(), 0.f);
    const std::vector<double> want = experts_oracle({}, c.file_args);
    result_of<Nvfp4BesideKbit>(c, t, kFewRuns[1]);
    EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 5e-6}), "");
  }
}

// The k-bit weight that `dsv4 quantize --experts k4` makes of an MXFP4 weight.
WeightView imported(test::Arena& arena, const WeightView& w) {
  const TensorView planes = arena.input(DType::kI32, {w.n, w.k / kKbitBlock * 4});
  const TensorView scale = arena.input(DType::kU8, {w.n, w.k / kKbitBlock});
  const TensorView codebook = arena.input(DType::kF32, {16});
  const ImportMxfp4Result result = import_mxfp4({.weight = w, .planes = planes, .scales = scale});
  EXPECT_TRUE(result.fits());
  std::ranges::copy(e2m1_codebook().values(), codebook.as<float>());
  return {.format = WeightFormat::kKbit,
          .n = w.n,
          .k = w.k,
          .data = planes,
          .scale = scale,
          .scale2 = result.tensor_scale,
          .bits = 4,
          .codebook = codebook};
}

template <int kColumns>
void expect_bits_of_the_import(const ImagesShape& shape) {
  ImagesCase c(shape, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
  const auto t = c.args.x.dim(0);
  const std::vector<float> fp4 = result_of<Fp4<WeightFormat::kMxfp4, kColumns>>(c, t, kFewRuns[1]);
  for (ExpertWeights& expert : c.file)
    for (WeightView* w : {&expert.w1, &expert.w3, &expert.w2}) *w = imported(c.arena, *w);
  c.args.stack = test::pack_images(c.arena, c.file);
  EXPECT_TRUE((fp4 == result_of<E4M3<4, kColumns>>(c, t, kFewRuns[1])));
}

TEST(ExpertsFewEmulated, Mxfp4HasTheBitsOfItsImport) {
  expect_bits_of_the_import<gemm::experts_e4m3::kMaxColumns>(
      {.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  expect_bits_of_the_import<gemm::experts_e4m3::kWideColumns>(
      {.t = 3, .k = 2, .e = 3, .d = 5216, .inner = 96});
}

// A scale is a power of two, whatever its byte is: a row of down with byte b has 2^(b - 127) times
// the bits that it has with 127. Results below the smallest normal number may be a step of 2^-133
// off, as they are rounded to fewer bits. Router weights of 2^-12 keep the sums of large bytes
// finite, those of 1 the results of small ones above 2^-133.
TEST(ExpertsFewEmulated, EveryScaleByteOfMxfp4) {
  for (const bool large : {false, true}) {
    ImagesCase c({.t = 3, .k = 1, .e = 1, .d = 256, .inner = 288}, WeightFormat::kMxfp4,
                 WeightFormat::kMxfp4);
    for (int64_t i = 0; i < 3; ++i)
      const_cast<float*>(c.args.weights.as<float>())[i] = large ? 0x1p-12f : 1.f;
    const auto result_with = [&](const auto& byte_of_row) {
      const ConstTensorView& scale = c.file[0].w2.scale;
      for (int64_t row = 0; row < 256; ++row) {
        auto* bytes = const_cast<uint8_t*>(scale.row<uint8_t>(row));
        const uint8_t byte = byte_of_row(row);
        // One NaN alone: sums of several infinite blocks would be NaN, too.
        std::fill_n(bytes, scale.dim(1), byte == 255 ? uint8_t{127} : byte);
        bytes[0] = byte;
      }
      c.args.stack = test::pack_images(c.arena, c.file);
      return result_of<Fp4<WeightFormat::kMxfp4>>(c, 3, kFewRuns[1]);
    };
    const std::vector<float> ones = result_with([](int64_t) { return uint8_t{127}; });
    const std::vector<float> got =
        result_with([](int64_t row) { return static_cast<uint8_t>(row); });
    for (size_t i = 0; i < got.size(); ++i) {
      const int byte = static_cast<int>(i % 256);
      if (large != (byte > 127)) continue;
      if (byte == 255) {
        EXPECT_TRUE(std::isnan(got[i]));
        continue;
      }
      const double want = std::ldexp(static_cast<double>(ones[i]), byte - 127);
      ASSERT_TRUE(std::isfinite(want) && std::abs(want) > 0x1p-132) << byte;
      EXPECT_NEAR(static_cast<double>(got[i]), want, std::abs(want) < 0x1p-126 ? 0x1p-133 : 0)
          << byte;
    }
  }
}

// What decides between the two implementations.
TEST(ExpertsFewEmulated, CodebooksOnTheE4m3Grid) {
  using gemm::fits_e4m3;
  for (const int bits : {2, 3, 4}) {
    EXPECT_TRUE(fits_e4m3(e4m3_codebook(bits))) << bits;
    EXPECT_FALSE(fits_e4m3(nf_codebook(bits))) << bits;
    EXPECT_FALSE(fits_e4m3(bnf_codebook(bits))) << bits;
  }
  EXPECT_TRUE(fits_e4m3(e2m1_codebook()));
  EXPECT_FALSE(fits_e4m3(e4m3_codebook(5)));  // a permute finds one of eight values
  EXPECT_FALSE(fits_e4m3(user_codebook(std::vector<float>{-4, -1, 1, 2})));  // not antisymmetric
  EXPECT_FALSE(fits_e4m3(user_codebook(std::vector<float>{-1, -0x1p-18f, 0x1p-18f, 1})));
}

}  // namespace
}  // namespace dsv4
