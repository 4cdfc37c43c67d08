#include "dsv4/ops/xattn/prefill/xattn_prefill.h"

#include <cmath>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention_case.h"
#include "dsv4/ops/xattn/attention/prefill_batch_case.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"
#include "dsv4/ops/xattn/select/xattn_select.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Lengths;

XattnPrefillArgs random_args(Arena& arena, Rng& rng, const std::vector<Lengths>& lengths,
                             double tau) {
  XattnPrefillArgs args{.batch = test::prefill_batch(arena, lengths, true)};
  const int64_t b = args.batch.size(), heads = 4, kv_heads = 2, d = 128;
  const int64_t t_q = args.batch.cu_q.as<int>()[b], t_kv = args.batch.cu_kv.as<int>()[b];
  const TensorView q = arena.input(DType::kBF16, {t_q, heads, d});
  const TensorView k = arena.input(DType::kBF16, {t_kv, kv_heads, d});
  const TensorView v = arena.input(DType::kBF16, {t_kv, kv_heads, d});
  const TensorView shares = arena.input(DType::kF32, {heads});
  test::fill_normal(q, rng, 12);
  test::fill_normal(k, rng);
  test::fill_normal(v, rng);
  for (int64_t h = 0; h < heads; ++h) shares.as<float>()[h] = static_cast<float>(tau);
  args.q = q, args.k = k, args.v = v, args.tau = shares;
  for (const Lengths& n : lengths) {
    args.max_queries = std::max<int64_t>(args.max_queries, n.queries);
    args.max_keys = std::max<int64_t>(args.max_keys, n.keys);
  }
  args.stride = 8, args.min_length = 0;
  args.scale = 1.f / std::sqrt(static_cast<float>(d));
  args.out = arena.output(DType::kBF16, {t_q, heads, d});
  args.lse = arena.output(DType::kF32, {heads, t_q});
  return args;
}

// Runs `args` on the CPU, and where there is a GPU on it; check(device) sees the outputs.
template <class Check>
void on_devices(Arena& arena, const XattnPrefillArgs& args, const Check& check) {
  arena.freeze();
  for (const auto& impl : xattn_prefill.impls) {
    Context context;
    if (impl.arch != Arch::kCpu) context.device = test::gpu();
    if (!reaches(impl.arch, context)) continue;
    test::count_impl(impl, nullptr);
    SCOPED_TRACE(std::string(impl.name));
    arena.prepare();
    xattn_prefill(context, args);
    if (context.device != nullptr) test::wait(*context.device);
    arena.verify();
    check(context);
  }
}

std::vector<std::byte> bytes_of(const ConstTensorView& view) {
  return {view.data, view.data + view.bytes()};
}

void expect_dense(const XattnPrefillArgs& args) {
  BlockSparseAttentionArgs dense{.batch = args.batch, .q = args.q, .k = args.k, .v = args.v};
  dense.scale = args.scale, dense.out = args.out;
  const BlockSparseAttentionWant want = block_sparse_attention_oracle(dense);
  EXPECT_EQ(test::compare(args.out, want.out, {.ulps = 1.5, .abs = 2e-6, .rel = 0x1p-8}), "");
  EXPECT_EQ(test::compare(args.lse, want.lse, {.ulps = 8, .abs = 2e-5}), "");
}

TEST(XattnPrefill, DenseWhereAsked) {
  Arena arena;
  Rng rng(1);
  XattnPrefillArgs args = random_args(arena, rng, {{600, 900}, {300, 300}}, 0.2);
  args.dense = true;
  on_devices(arena, args, [&](const Context&) { expect_dense(args); });
  args.dense = false, args.min_length = 1000;
  on_devices(arena, args, [&](const Context&) { expect_dense(args); });
  args.min_length = 0, args.dense_tail = 1000;  // every row, through lists
  on_devices(arena, args, [&](const Context&) { expect_dense(args); });
}

// A share of 1 leaves out blocks without any mass only.
TEST(XattnPrefill, WholeMassIsDense) {
  Arena arena;
  Rng rng(2);
  const XattnPrefillArgs args = random_args(arena, rng, {{600, 900}, {1, 300}}, 1.0);
  on_devices(arena, args, [&](const Context&) { expect_dense(args); });
}

// The three ops by themselves give the same bits, and fewer blocks than all of them.
TEST(XattnPrefill, IsItsThreeOps) {
  Arena arena, other;
  Rng rng(3);
  XattnPrefillArgs args = random_args(arena, rng, {{1000, 1500}, {700, 700}}, 0.5);
  args.norm = 0.8f;
  on_devices(arena, args, [&](const Context& context) {
    const auto out = bytes_of(args.out);
    const TensorView sums = other.inout(DType::kF32, {2, 4, 9, 12});
    const BlockLists<TensorView> lists{.counts = other.inout(DType::kI32, {2, 4, 9}),
                                       .indices = other.inout(DType::kI32, {2, 4, 9, 12})};
    xattn_scores(context, {.batch = args.batch,
                           .q = args.q,
                           .k = args.k,
                           .stride = 8,
                           .scale = args.scale / args.norm,
                           .sums = sums});
    xattn_select(context, {.batch = args.batch, .sums = sums, .tau = args.tau, .lists = lists});
    BlockSparseAttentionArgs attention{.batch = args.batch, .q = args.q, .k = args.k, .v = args.v};
    attention.lists = {.counts = lists.counts, .indices = lists.indices};
    attention.scale = args.scale, attention.out = args.out;
    block_sparse_attention(context, attention);
    if (context.device != nullptr) test::wait(*context.device);
    EXPECT_TRUE(out == bytes_of(args.out));
    int listed = 0, visible = 0;
    for (int64_t i = 0; i < lists.counts.numel(); ++i) listed += lists.counts.as<int>()[i];
    for (int i = 0; i < 2; ++i) {
      const PrefillSequence s = test::sequence_of(args.batch, i);
      for (int r = 0; r < s.num_q_blocks(128); ++r) {
        visible += 4 * s.visible_blocks(128, s.first_block(128) + r);
      }
    }
    EXPECT_GT(listed, visible / 10);
    EXPECT_LT(listed, 3 * visible / 4);
  });
}

TEST(XattnPrefill, RoundsOfHeadsChangeNothing) {
  Arena arena;
  Rng rng(4);
  XattnPrefillArgs args = random_args(arena, rng, {{1000, 1500}, {700, 700}}, 0.8);
  std::vector<std::vector<std::byte>> all;
  on_devices(arena, args, [&](const Context&) { all.push_back(bytes_of(args.out)); });
  args.workspace_limit = 1;
  size_t i = 0;
  on_devices(arena, args, [&](const Context&) { EXPECT_TRUE(all.at(i++) == bytes_of(args.out)); });
}

// A prompt in one call, and in chunks of whole blocks: the same bits.
TEST(XattnPrefill, ChunksChangeNothing) {
  Arena arena;
  Rng rng(5);
  const int n = 1900;
  XattnPrefillArgs args = random_args(arena, rng, {{n, n}}, 0.8);
  const TensorView prompt = arena.input(DType::kI32, {1});
  prompt.as<int>()[0] = n;
  args.prompt_lengths = prompt;
  args.dense_tail = 200;
  on_devices(arena, args, [&](const Context& context) {
    const auto whole = bytes_of(args.out);
    for (const int chunk : {128, 384, 1024}) {
      std::memset(args.out.data, 0xff, static_cast<size_t>(args.out.bytes()));
      for (int begin = 0; begin < n; begin += chunk) {
        const int end = std::min(begin + chunk, n);
        Arena lengths;
        XattnPrefillArgs part = args;
        part.batch = test::prefill_batch(lengths, {{end - begin, end}}, true);
        part.q = args.q.slice(0, begin, end), part.out = args.out.slice(0, begin, end);
        part.k = args.k.slice(0, 0, end), part.v = args.v.slice(0, 0, end);
        part.lse = {};
        part.max_queries = end - begin, part.max_keys = end;
        xattn_prefill(context, part);
        if (context.device != nullptr) test::wait(*context.device);
      }
      EXPECT_TRUE(whole == bytes_of(args.out)) << "chunks of " << chunk;
    }
  });
}

// A dry run, as a caller with a workspace of its own makes it.
TEST(XattnPrefill, CountsItsWorkspace) {
  Arena arena;
  Rng rng(6);
  const XattnPrefillArgs args = random_args(arena, rng, {{600, 900}}, 0.5);
  Context context;
  context.device = test::gpu();
  if (context.device == nullptr) GTEST_SKIP() << "no GPU";
  // Sums and lists of 4 heads, 6 query and 8 key blocks.
  EXPECT_GE(workspace_bytes(xattn_prefill, context, args), 4 * 6 * (8 + 1 + 8) * 4);
}

TEST(XattnPrefill, SaysWhatIsWrong) {
  Arena arena;
  Rng rng(1);
  XattnPrefillArgs args = random_args(arena, rng, {{300, 300}}, 0.9);
  args.max_keys = 0;
  EXPECT_TRUE(test::says(test::error_of([&] { xattn_prefill(Context{}, args); }),
                         "max_queries=300 and max_keys=0"));
}

}  // namespace
}  // namespace dsv4
