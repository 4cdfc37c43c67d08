// The kernels of attention_in/sm90_few/append.h and heads.h on the emulator, launched early,
// between a kernel that writes its inputs and one that reads its rows, against the oracle of
// attention_in with the oracle's products.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/ops/model/attention_in/heads.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append_kernel.cuh"
#include "dsv4/ops/parts/kv_insert/packed_rows.cuh"
#include "dsv4/ops/parts/norm/norm_case.h"
#include "dsv4/ops/parts/rope/rope_case.h"
#include "tests/emulator/attention_in_rows.h"
#include "tests/emulator/runs.h"

namespace dsv4 {
namespace {

namespace few = attention_in_kernel::sm90_few;
using test::AttentionInShape;

void check(AttentionInShape shape) {
  shape.hidden = 256, shape.rank = 128, shape.heads = 1, shape.row = {}, shape.index_dim = 128;
  test::AttentionInCase c(shape, Numerics::kOfficial, test::kFp8);
  const AttentionInArgs& args = c.args;
  const AttentionInWant want = attention_in_oracle(Context{}, args);
  const test::RowProducts products(args);
  const test::Rows rows(args, want, products);
  const few::AppendParams p = few::make_params(args, products.inputs());
  emulator::check_runs(
      c.arena, 3,
      [&](int i) {
        emulator::launch_stream({emulator::touching(rows.touched),
                                 {{.grid = few::kCtas * static_cast<int>(few::num_clusters(p)),
                                   .block = few::kThreads,
                                   .cluster = few::kCtas,
                                   .shared = sizeof(few::Shared),
                                   .pdl = true,
                                   .resident = 2},
                                  [&] { few::append_kernel(p); }},
                                 emulator::touching(rows.touched)},
                                static_cast<uint64_t>(i));
      },
      [&] { rows.expect_equal(); });
}

TEST(AppendEmulated, WindowRows) {
  check({.runs = {{3, 5}}, .spare = 1});
}

// A sequence of several entries, none, one token that closes an entry and one that does not.
TEST(AppendEmulated, EntriesAndKeys) {
  check({.runs = {{0, 9}, {6, 1}, {5, 0}, {7, 1}, {126, 3}},
         .ratio = 4,
         .has_index = true,
         .spare = 2});
}

// Rows of the ring that the first block pools belong to later tokens of the same step.
TEST(AppendEmulated, TokensReplaceWhatIsPooled) {
  check({.runs = {{7, 9}}, .ratio = 4, .has_index = true});
}

TEST(AppendEmulated, LongEntries) {
  check({.runs = {{127, 1}, {20, 1}}, .ratio = 128});
}

// The queries (attention_in/queries.h) of 18 heads: a CTA of 16 heads, and one of 2.
TEST(FinishHeadsEmulated, AgreesWithOracle) {
  namespace kernel = attention_in_kernel;
  constexpr int kTokens = 2, kHeads = 18;
  test::Arena arena;
  Rng rng(3);
  const TensorView q = arena.inout(DType::kBF16, {kTokens, kHeads, kernel::kHeadWidth});
  const TensorView positions = arena.input(DType::kI32, {kTokens});
  const TensorView freqs = arena.input(DType::kF32, {kernel::kHeadPairs});
  test::fill_normal(q, rng, 2.0);
  test::fill_ints(positions, rng, 0, 1'000'000);
  const std::vector<float> table = rope_frequencies(2 * kernel::kHeadPairs, 10000, {});
  std::copy(table.begin(), table.end(), freqs.as<float>());
  const TensorView rows = q.reshape({kTokens * kHeads, kernel::kHeadWidth});
  const Buffer normal = oracle::stored(DType::kBF16, {kTokens, kHeads, kernel::kHeadWidth},
                                       head_norm_oracle(Context{}, {.x = rows, .out = rows}));
  const std::vector<double> want =
      rope_oracle({.x = normal, .positions = positions, .freqs = freqs});
  emulator::check_runs(
      arena, 3,
      [&](int i) {
        const kernel::HeadParams p{.q = q.as<bf16>(),
                                   .heads = kHeads,
                                   .positions = positions.as<int32_t>(),
                                   .freqs = freqs.as<float>(),
                                   .eps = 1e-6f};
        emulator::launch_stream({emulator::touching({q, positions}),
                                 {{.grid = {kTokens, 2},
                                   .block = kernel::kHeadWarps * kWarp,
                                   .pdl = true,
                                   .resident = 2},
                                  [&] { kernel::finish_heads_kernel<kernel::SumOfLanes>(p); }},
                                 emulator::touching({q})},
                                static_cast<uint64_t>(i));
      },
      [&] {
        EXPECT_EQ(test::compare(q, want, {.ulps = 1.01, .rel = 0x1p-7, .cosine = 1e-6}), "");
      });
}

TEST(AppendEmulated, V32RowsHaveTheBytesOfTheFormat) {
  const KvLayout small{.nope = 256, .rope = 6, .format = KvRowFormat::kV32};
  for (const KvLayout& layout : {kV32Layout, small}) {
    constexpr int kEntries = 3, kRow = 4;
    Rng rng(static_cast<uint64_t>(layout.nope));
    std::vector<float> x(static_cast<size_t>(layout.width()));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(std::exp2(static_cast<double>(i / 32 % 19) - 12) * rng.normal());
    x[7] = NAN, x[130] = -0.f;
    std::vector<uint8_t> got(static_cast<size_t>(2 * layout.page_bytes(kEntries)), 0xee);
    std::vector<uint8_t> want = got;
    pack_kv_entry(layout, x.data(), want.data() + layout.page_bytes(kEntries), kEntries, 1);
    PackedPages<KvLayout> pages;
    pages.data = reinterpret_cast<std::byte*>(got.data());
    pages.stride = layout.page_bytes(kEntries), pages.layout = layout,
    pages.page_entries = kEntries;
    emulator::launch({.grid = 1, .block = 64}, [&] { pack_v32_row(pages, kRow, x.data()); });
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace dsv4
