#include "dsv4/ops/parts/compressor/compressor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/compressor/compressor_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Ints;

void check_case(const StateLayout& layout, const Ints& start, const Ints& counts, DType out_dtype,
                int64_t spare = 0) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(layout.ratio * 7 + layout.width + counts.front()));
  const CompressorArgs args =
      test::random_compressor(arena, rng, layout, start, counts, out_dtype, spare);
  const CompressorWant want = compressor_oracle(args);
  test::OpCase<CompressorArgs> test{.name = fmt::format("compressor r={} d_c={} t={}", layout.ratio,
                                                        layout.width, args.kv.dim(0)),
                                    .args = args};
  // A shifted logit has an error of an ulp of |g| < 16 (2^-20), and so has a weight, relatively;
  // each addition of up to 128 weights adds 2^-24. Outputs are convex combinations of values below
  // max|a|, whose scale `rel` takes from the largest output. The state has one rounding (ape).
  test.outputs = {{"out",
                   args.out,
                   want.out,
                   {.ulps = out_dtype == DType::kF32 ? 4.0 : 0.51, .abs = 1e-5, .rel = 1e-5}},
                  {"state", args.state, want.state, {.ulps = 0.51}}};
  test.strided = [](CompressorArgs& a, test::StridedCopy& copy) {
    copy(a.kv), copy(a.gate), copy(a.ape), copy(a.state), copy(a.out);
  };
  check_op(compressor.impls, Context{}, arena, test);
}

TEST(Compressor, AgreesWithOracle) {
  for (const StateLayout layout :
       {StateLayout{4, 512, true}, StateLayout{4, 19, true}, StateLayout{128, 64},
        StateLayout{3, 16}, StateLayout{1, 5}, StateLayout{8, 40, true, 3},
        StateLayout{16, 12, true}, StateLayout{64, 33, false, 5}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      check_case(layout, {0}, {0}, dtype);
      check_case(layout, {0}, {1}, dtype);
      check_case(layout, {0}, {int64_t{3} * layout.ratio + 1}, dtype);
      check_case(layout, {0, 6, 3, 127, 0, 256}, {9, 2, 1, 130, 0, 128}, dtype);
      check_case(layout, {0, 7, 3, 0}, {0, 0, 1, 0}, dtype, 3);
    }
  }
}

// One sequence through the op in chunks of the given lengths, in slot 1 of 3.
struct Stream {
  StateLayout layout;
  Buffer kv, gate, ape, state, out;

  Stream(const StateLayout& l, int64_t tokens, uint64_t seed)
      : layout(l),
        kv(DType::kF32, {tokens, l.columns()}),
        gate(DType::kF32, {tokens, l.columns()}),
        ape(DType::kF32, {l.ratio, l.columns()}),
        state(DType::kF32, {3, l.floats()}),
        out(DType::kF32, {tokens / l.ratio, l.width}) {
    Rng rng(seed);
    for (const Buffer* buffer : {&kv, &gate, &ape}) test::fill_normal(buffer->view(), rng);
    std::fill_n(state.as<float>(), state.view().numel(), 1e30f);  // of an earlier sequence
  }

  void append(int64_t position, int64_t count) { append(position, count, *this); }

  // Tokens of another stream.
  void append(int64_t position, int64_t count, const Stream& from) {
    Buffer cu(DType::kI32, {2}), start(DType::kI32, {1}), slot(DType::kI32, {1});
    cu.as<int32_t>()[1] = static_cast<int32_t>(count);
    start.as<int32_t>()[0] = static_cast<int32_t>(position);
    slot.as<int32_t>()[0] = 1;
    const int64_t first = position / layout.ratio, last = (position + count) / layout.ratio;
    compressor(Context{}, {.layout = layout,
                           .kv = from.kv.view().slice(0, position, position + count),
                           .gate = from.gate.view().slice(0, position, position + count),
                           .ape = ape,
                           .cu_tokens = cu,
                           .start = start,
                           .state_slots = slot,
                           .state = state,
                           .out = out.view().slice(0, first, last)});
  }
};

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.bytes() == b.bytes() && std::equal(a.data, a.data + a.bytes(), b.data);
}

TEST(Compressor, AnyChunkingGivesTheSameBits) {
  for (const StateLayout layout :
       {StateLayout{4, 32, true}, StateLayout{128, 48}, StateLayout{5, 7},
        StateLayout{8, 9, true, 2}, StateLayout{64, 10, false, 3}}) {
    const int64_t tokens = 2 * 128 + 67;
    Stream whole(layout, tokens, 11);
    whole.append(0, tokens);
    for (const int64_t chunk : {1, 3, 7, 64, -1}) {  // -1: random lengths, 0 included
      Stream parts(layout, tokens, 11);
      Rng rng(99);
      for (int64_t position = 0; position < tokens;) {
        const int64_t wish = chunk > 0 ? chunk : rng.below(200);
        const int64_t count = std::min(wish, tokens - position);
        parts.append(position, count);
        position += count;
      }
      EXPECT_TRUE(same_bytes(whole.out, parts.out)) << layout.ratio << " in chunks of " << chunk;
      EXPECT_TRUE(same_bytes(whole.state, parts.state)) << layout.ratio << " state, " << chunk;
    }
  }
}

// Up to `spare` wrong tokens after every length, which the right ones then replace, do not affect
// any bit of what follows.
TEST(Compressor, AnEarlierLengthContinuesAsIfNothingHadFollowed) {
  for (const StateLayout layout :
       {StateLayout{4, 6, true, 3}, StateLayout{8, 5, true, 7}, StateLayout{3, 4, false, 2},
        StateLayout{16, 3, false, 5}, StateLayout{128, 2, false, 3}}) {
    const int64_t tokens = 2 * 128 + 21;
    Stream whole(layout, tokens, 11);
    whole.append(0, tokens);
    for (int64_t cut = 0; cut + layout.spare <= tokens; ++cut) {
      Stream replaced(layout, tokens, 11);
      const Stream wrong(layout, tokens, 12);
      replaced.append(0, cut);
      replaced.append(cut, layout.spare, wrong);
      for (int64_t position = cut; position < tokens; position += 5)
        replaced.append(position, std::min<int64_t>(5, tokens - position));
      ASSERT_TRUE(same_bytes(whole.out, replaced.out)) << layout.ratio << " cut at " << cut;
    }
  }
}

// The other sequences of the batch and their order do not affect the bits either.
TEST(Compressor, BatchGivesTheBitsOfSingleSequences) {
  const StateLayout layout{4, 24, true};
  const Ints counts{13, 4, 1, 30};
  const int64_t tokens = test::prefix_sum(counts).back();
  Arena arena;
  Rng rng(4);
  Buffer state(DType::kF32, {4, layout.floats()}), state_alone(DType::kF32, {4, layout.floats()});
  const TensorView kv = arena.input(DType::kF32, {tokens, layout.columns()});
  const TensorView gate = arena.input(DType::kF32, {tokens, layout.columns()});
  const TensorView ape = arena.input(DType::kF32, {layout.ratio, layout.columns()});
  for (const TensorView& view : {kv, gate, ape}) test::fill_normal(view, rng);
  CompressorArgs args{.layout = layout,
                      .kv = kv,
                      .gate = gate,
                      .ape = ape,
                      .cu_tokens = test::int_input(arena, test::prefix_sum(counts)),
                      .start = test::int_input(arena, {0, 0, 0, 0}),
                      .state_slots = test::int_input(arena, {2, 0, 3, 1}),
                      .state = state,
                      .out = arena.output(DType::kF32, {3 + 1 + 0 + 7, layout.width})};
  compressor(Context{}, args);
  int64_t entry = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t begin = test::prefix_sum(counts)[i], n = counts[i] / 4;
    CompressorArgs one = args;
    one.kv = kv.slice(0, begin, begin + counts[i]);
    one.gate = gate.slice(0, begin, begin + counts[i]);
    one.cu_tokens = test::int_input(arena, {0, counts[i]});
    one.start = test::int_input(arena, {0});
    one.state_slots =
        args.state_slots.slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    one.state = state_alone;
    one.out = arena.output(DType::kF32, {n, layout.width});
    compressor(Context{}, one);
    EXPECT_TRUE(same_bytes(one.out, args.out.slice(0, entry, entry + n))) << i;
    entry += n;
  }
  EXPECT_TRUE(same_bytes(state, state_alone));
}

// The first CSA block has no previous block: with equal gates it is the mean of the current halves
// of its own four tokens.
TEST(Compressor, FirstBlockIgnoresTheAbsentOne) {
  Stream stream({4, 2, true}, 4, 1);
  std::fill_n(stream.gate.as<float>(), 16, 1.f);
  std::fill_n(stream.ape.as<float>(), 16, 0.f);
  stream.append(0, 4);
  const float* kv = stream.kv.as<float>();
  for (int c = 0; c < 2; ++c) {
    double mean = 0;
    for (int t = 0; t < 4; ++t) mean += static_cast<double>(kv[4 * t + 2 + c]) / 4;
    EXPECT_NEAR(stream.out.as<float>()[c], mean, 1e-6);
  }
}

TEST(Compressor, CountsClosedBlocks) {
  EXPECT_EQ(num_closed_entries(0, 3, 4), 0);
  EXPECT_EQ(num_closed_entries(3, 1, 4), 1);
  EXPECT_EQ(num_closed_entries(0, 256, 128), 2);
}

TEST(Compressor, ReportsErrors) {
  Stream stream({4, 8, true}, 8, 1);
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  Arena arena;
  CompressorArgs args{.layout = stream.layout,
                      .kv = stream.kv,
                      .gate = stream.gate,
                      .ape = stream.ape,
                      .cu_tokens = test::int_input(arena, {0, 4, 8}),
                      .start = test::int_input(arena, {0, 0}),
                      .state_slots = test::int_input(arena, {1, 1}),
                      .state = stream.state,
                      .out = stream.out};
  const auto message = [&] { return test::error_of([&] { compressor(Context{}, args); }); };
  EXPECT_TRUE(contains(message(), "state_slots[1]=1 is taken twice"));
  args.state_slots = test::int_input(arena, {1, 3});
  EXPECT_TRUE(contains(message(), "state_slots[1]=3 of 3"));
  args.state_slots = test::int_input(arena, {1, 0});
  args.cu_tokens = test::int_input(arena, {0, 4, 9});
  EXPECT_TRUE(contains(message(), "cu_tokens[1]=4 .. 9 of 8"));
  args.cu_tokens = test::int_input(arena, {0, 4, 7});
  args.out = stream.out.view().slice(0, 0, 0);
  EXPECT_TRUE(contains(message(), "out has 0 rows, 1 blocks close"));
  args.state_slots = test::int_input(arena, {1, -1});
  EXPECT_TRUE(contains(message(), "state_slots[1]=-1 of 3"));
  args.start = test::int_input(arena, {-1, 0});
  EXPECT_TRUE(contains(message(), "start[0]=-1"));
}

}  // namespace
}  // namespace dsv4
