// The kernels of sm90_grouped, sm90_grouped_e4m3 and sm90_many_e4m3 as streams for the emulator:
// lists, rows, gate and up, down, of both products or of the halves; and what all of them must do.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <type_traits>
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

namespace dsv4::emulator::grouped_runs {

namespace grouped = gemm::grouped;
namespace sm90_grouped = experts_kernel::sm90_grouped;
using test::ImagesCase;
using test::ImagesShape;

struct Run {
  uint64_t seed;
  int ctas;
};
inline constexpr Run kRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

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
inline void combine(const ExpertsArgs& args, const sm90_grouped::Call& call) {
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
template <int K, ImageScale kScale = ImageScale::kE4M4>
using InBlocks = gemm::KbitImageBlocks<K, kScale>;

using sm90_grouped::Operands;
template <class Weights>
inline constexpr Operands kOperandsOf = grouped::kScalesBlocks<Weights>   ? Operands::kBlocks
                                        : std::is_same_v<Weights, Folded> ? Operands::kFolded
                                                                          : Operands::kScaled;

// The table that the kernel of these weights reads. Codebooks of the cases are on the e4m3 grid, so
// the kernels for others would not be chosen for them.
template <class Weights>
void take_table(grouped::Product& product, const Codebook& book, ImageScale scale) {
  if constexpr (kOperandsOf<Weights> == Operands::kScaled) {
    product.table = Weights::kFp4 ? gemm::make_bf16_table(book)
                    : Weights::kTableKind == gemm::ScaledTable::kE4m3
                        ? gemm::make_e4m3_table(book)
                        : gemm::make_f16_table(book, gemm::kScaledTop);
    product.factor = gemm::scaled_factor(scale) * product.table.unit;
  }
}

// Lists, and `rows` rows of x.
inline std::vector<emulator::Kernel> rows_of(const sm90_grouped::Call& call, int64_t rows) {
  const emulator::Launch list{
      .grid = call.lists.ctas, .block = sm90_grouped::kListThreads, .pdl = true};
  const auto grid = [](int64_t ctas) {
    return emulator::Launch{
        .grid = static_cast<int>(ctas), .block = sm90_grouped::kRowThreads, .pdl = true};
  };
  const emulator::Kernel by_rows{grid(rows), [&] { sm90_grouped::rows_kernel(call.rows); }};
  const emulator::Kernel by_tiles{
      grid(call.most_tiles() * sm90_grouped::groups_of(call.rows)),
      [&] { sm90_grouped::tile_rows_kernel(call.rows, call.lists.end_of_tiles()); }};
  return {{list, [&] { sm90_grouped::count_kernel(call.choices, call.lists); }},
          {list, [&] { sm90_grouped::place_kernel(call.choices, call.lists); }},
          sm90_grouped::takes_groups(call.rows) ? by_tiles : by_rows};
}

// Up: of gate and up. in_turns: if its images are those of `args`
template <class Up, class Down>
void run_emulated(const ExpertsArgs& args, const Run& how,
                  const emulator::ExpertsInTurns* in_turns = nullptr) {
  Scratch scratch;
  constexpr Operands kOperands = std::max(kOperandsOf<Up>, kOperandsOf<Down>);
  const sm90_grouped::Call call = sm90_grouped::make_call(args, kOperands, scratch);
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
      sm90_grouped::make_hidden_call(args, kOperandsOf<Weights>, scratch);
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
      sm90_grouped::make_output_call(args, kOperandsOf<Weights>, scratch);
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

}  // namespace dsv4::emulator::grouped_runs
