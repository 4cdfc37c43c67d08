// The kernels of attention_in/sm90_few/query.h on the emulator, launched early between kernels that
// touch what they read and write, against the oracle of attention_in with the oracle's products.
// Bits depend neither on the order of events nor on the other tokens, nor on whether every CTA
// normalizes the latents or a kernel of their own does. Queries of many tokens, whose products are
// stored before they are finished, have the same bits.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "dsv4/ops/gemm/sm90/large_m/call.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_finish.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_kernel.cuh"
#include "tests/emulator/attention_in_rows.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4 {
namespace {

namespace query = attention_in_kernel::query;
using emulator::Kernel;
using test::AttentionInShape;

bool normalizes(const query::Params& p) {
  return p.latent != nullptr;
}

Kernel query_kernel(const query::Params& p) {
  const int tokens = query::tile_tokens(p.format, p.tokens);
  Kernel kernel{
      {.grid = query::kRanks * p.num_clusters(),
       .block = query::kThreads,
       .cluster = query::kRanks,
       .shared = static_cast<size_t>(query::Layout(p.format, tokens, p.groups, p.stages).bytes),
       .pdl = true,
       .resident = 2},
      {}};
  gemm::with_q8_config(p.format, tokens, [&](auto tile) {
    using C = query::Config<decltype(tile)::kFormat, decltype(tile)::kTokens>;
    kernel.body = [p] {
      if constexpr (C::kStreamsX) {
        query::query_kernel<C, false>(p);
      } else {
        normalizes(p) ? query::query_kernel<C, true>(p) : query::query_kernel<C, false>(p);
      }
    };
  });
  return kernel;
}

Kernel normalize_kernel(const query::NormalizeParams& p, int tokens) {
  return {{.grid = tokens, .block = query::normalize_threads(p.groups), .pdl = true},
          [p] { query::normalize_kernel(p); }};
}

CUtensorMap make_map(const TmaBox& box) {
  return emulator::make_tma_map(box);
}

void check(AttentionInShape shape, bool stored, const test::StoredAs& weights = test::kFp8) {
  SCOPED_TRACE(shape.tokens());
  SCOPED_TRACE(name(weights));
  shape.hidden = 128, shape.row = {}, shape.index_dim = query::kIndexWidth;
  test::AttentionInCase c(shape, Numerics::kOfficial, weights);
  const AttentionInArgs& args = c.args;
  const AttentionInWant want = attention_in_oracle(Context{}, args);
  const Buffer latent = oracle::stored(DType::kBF16, {args.x.dim(0), args.weights.wq_a.n},
                                       projection_oracle(Context{}, args.x, args.weights.wq_a));
  const test::RowProducts products(args);
  const test::Rows rows(args, want, products);
  std::vector<ConstTensorView> touched = rows.touched;
  touched.push_back(latent), touched.push_back(args.q);
  const AppendInputs inputs = products.inputs();
  const query::Params normalizing = query::make_params(args, latent, &inputs, make_map);
  query::Params p = normalizing;
  std::vector<Kernel> kernels{emulator::touching(touched)};
  if (stored) {
    const query::StoredLatents to =
        query::make_stored_latents(p.format, p.tokens, latent.view().dim(1),
                                   [&](DType dtype, std::initializer_list<int64_t> sizes) {
                                     return c.arena.output(dtype, sizes);
                                   });
    kernels.push_back(normalize_kernel(query::normalize_params(args, latent, to), p.tokens));
    query::use_stored(p, to, make_map);
  }
  kernels.push_back(query_kernel(p));
  kernels.push_back(emulator::touching(touched));
  emulator::check_runs(
      c.arena, 3, [&](int i) { emulator::launch_stream(kernels, static_cast<uint64_t>(i)); },
      [&] {
        rows.expect_equal();
        EXPECT_EQ(test::compare(args.q, want.q, test::kOfficial.q), "");
        if (shape.select) {
          EXPECT_EQ(test::compare(args.index_q, want.index_q, test::kOfficial.index_q), "");
        }
      });
  // A token alone, which the CTAs normalize.
  const int64_t last = args.q.dim(0) - 1, bytes = args.q.bytes() / args.q.dim(0);
  const std::vector<std::byte> in_batch(args.q.data + last * bytes, args.q.data + args.q.bytes());
  query::Params alone = normalizing;
  alone.row_clusters = 0, alone.tokens = 1, alone.latent += last * args.weights.wq_a.n,
  alone.positions += last;
  alone.stages = query::stages_of(p.format, query::tile_tokens(p.format, 1), p.groups);
  emulator::launch_stream({query_kernel(alone)}, 1);
  EXPECT_EQ(std::memcmp(args.q.data, in_batch.data(), in_batch.size()), 0);
}

TEST(QueriesEmulated, Heads) {
  check({.runs = {{5, 1}}, .rank = 128, .heads = 1}, false);
  check({.runs = {{1'000'000, 8}}, .rank = 640, .heads = 2}, false);
}

// The second cluster of indexer heads has two of four.
TEST(QueriesEmulated, IndexerHeads) {
  const AttentionInShape shape{.runs = {{3, 5}},
                               .ratio = 4,
                               .has_index = true,
                               .select = true,
                               .rank = 384,
                               .heads = 1,
                               .index_heads = 6};
  for (const bool stored : {false, true}) check(shape, stored);
}

// One and five slabs; tiles of 2 and 8 tokens, the second of both filled; latents that CTAs
// normalize, and stored ones.
TEST(QueriesEmulated, BitPlanes) {
  check({.runs = {{5, 1}}, .rank = 256, .heads = 1}, false, test::kKbit5);
  check({.runs = {{1'000'000, 2}}, .rank = 1280, .heads = 2}, false, test::kKbit5);
  check({.runs = {{9, 2}}, .rank = 1024, .heads = 1}, true, test::kKbit4);
  AttentionInShape shape{.runs = {{3, 2}},
                         .ratio = 4,
                         .has_index = true,
                         .select = true,
                         .rank = 512,
                         .heads = 1,
                         .index_heads = 6};
  check(shape, false, test::kKbit4);
  shape.runs = {{3, 8}};
  check(shape, true, test::kKbit5);
  shape.runs = {{3, 5}}, shape.rank = 1280;
  check(shape, true, test::kKbit4);
}

TEST(QueriesEmulated, ManyTokens) {
  check({.runs = {{0, 9}}, .rank = 640, .heads = 1}, true);
  check({.runs = {{0, 15}},
         .ratio = 4,
         .has_index = true,
         .select = true,
         .rank = 256,
         .heads = 1,
         .index_heads = 1},
        true);
  check({.runs = {{7, 29}}, .rank = 384, .heads = 1}, true);
  // Codes in the ring: fewer slabs than stages and more; 48 and 64 tokens, filled and not.
  check({.runs = {{0, 33}}, .rank = 256, .heads = 1}, true);
  check({.runs = {{5, 48}}, .rank = 640, .heads = 1}, true);
  check({.runs = {{0, 20}, {9, 30}, {3, 13}},
         .ratio = 4,
         .has_index = true,
         .select = true,
         .rank = 768,
         .heads = 1,
         .index_heads = 2},
        true);
  check({.runs = {{2, 64}}, .rank = 1280, .heads = 2}, true);
}

Kernel product_kernel(const query::StoredLatents& latents, const WeightView& weight,
                      const TensorView& q) {
  namespace large = gemm::large_m;
  const gemm::Product product{.in = {.x = latents.codes, .x_scale = latents.scales},
                              .weight = weight,
                              .out = q.reshape({q.dim(0), q.dim(1) * q.dim(2)})};
  using C = large::Config<gemm::Format::kFp8>;
  const large::Params params = large::make_params(product, 0, make_map);
  return {{.grid = large::num_ctas(params, 4),
           .block = large::kThreads,
           .cluster = large::kCtas,
           .shared = sizeof(large::Shared<C>),
           .pdl = true},
          [params] { large::large_m_kernel<C, large::StoreSums>(params); }};
}

Kernel finish_heads(const AttentionInArgs& args, const query::StoredLatents& latents) {
  namespace heads = attention_in_kernel;
  const heads::HeadParams params{.q = args.q.as<bf16>(),
                                 .heads = static_cast<int>(args.q.dim(1)),
                                 .positions = args.positions.as<int32_t>(),
                                 .freqs = args.freqs.as<float>(),
                                 .eps = args.norm_eps,
                                 .rotations = latents.rotation_pairs()};
  return {{.grid = {static_cast<int>(args.q.dim(0)),
                    static_cast<int>(ceil_div(args.q.dim(1), int64_t{heads::kHeadsOfCta}))},
           .block = heads::kHeadWarps * kWarp,
           .pdl = true,
           .resident = 2},
          [params] { heads::finish_heads_kernel<query::SumOfRanks>(params); }};
}

Kernel finish_index_heads(const AttentionInArgs& args, const query::StoredLatents& latents) {
  const query::IndexHeadParams params{.q = args.index_q.as<bf16>(),
                                      .heads = static_cast<int>(args.index_q.dim(1)),
                                      .rotations = latents.rotation_pairs(),
                                      .factor = query::index_factor()};
  return {{.grid = static_cast<int>(args.index_q.dim(0)),
           .block = query::kIndexHeadWarps * kWarp,
           .pdl = true,
           .resident = 2},
          [params] { query::finish_index_heads_kernel(params); }};
}

void check_many(int64_t tokens, int64_t heads, int64_t index_heads) {
  SCOPED_TRACE(tokens);
  const AttentionInShape shape{.runs = {{1'000'000, static_cast<int>(tokens)}},
                               .ratio = 4,
                               .has_index = true,
                               .select = true,
                               .hidden = 128,
                               .rank = 384,
                               .heads = heads,
                               .index_heads = index_heads,
                               .row = {},
                               .index_dim = query::kIndexWidth};
  test::AttentionInCase c(shape, Numerics::kOfficial, test::kFp8);
  const AttentionInArgs& args = c.args;
  const Buffer latent = oracle::stored(DType::kBF16, {tokens, args.weights.wq_a.n},
                                       projection_oracle(Context{}, args.x, args.weights.wq_a));
  query::Params p = query::make_params(args, latent, nullptr, make_map);
  const query::StoredLatents to =
      query::make_stored_latents(p.format, tokens, latent.view().dim(1),
                                 [&](DType dtype, std::initializer_list<int64_t> sizes) {
                                   return c.arena.output(dtype, sizes);
                                 });
  query::use_stored(p, to, make_map);
  const Kernel normalize = normalize_kernel(query::normalize_params(args, latent, to), p.tokens);
  c.arena.freeze();
  const auto bits_of = [&](const std::vector<Kernel>& kernels, int seed) {
    c.arena.prepare();
    emulator::launch_stream(kernels, static_cast<uint64_t>(seed));
    c.arena.verify();
    return c.arena.written();
  };
  const std::vector<std::byte> want = bits_of({normalize, query_kernel(p)}, 1);
  for (int seed = 0; seed < 3; ++seed)
    EXPECT_TRUE(bits_of({emulator::touching({latent, args.q, args.index_q}), normalize,
                         product_kernel(to, args.weights.wq_b, args.q), finish_heads(args, to),
                         product_kernel(to, args.weights.indexer.wq_b, args.index_q),
                         finish_index_heads(args, to)},
                        seed) == want);
}

TEST(QueriesEmulated, StoredProductsAreFinishedWithTheSameBits) {
  check_many(12, 3, 4);
  check_many(64, 17, 9);
}

// Sums of squares of a head, of kTokens tokens, before they are rounded: outputs hide most orders
// of additions.
struct HeadSums {
  static constexpr int kTokens = 8;
  using Config = query::Config<gemm::Format::kFp8, kTokens>;

  std::vector<float> values;  // [kTokens][kHeadWidth], with the bits of bf16

  // As the fused kernel adds them.
  std::vector<float> fused() const {
    query::Params p{};
    p.groups = 1, p.stages = query::kMinStages, p.format = gemm::Format::kFp8, p.tokens = kTokens;
    const query::Layout layout(p.format, kTokens, p.groups, p.stages);
    std::vector<float> sums(kTokens);
    emulator::launch({.grid = query::kRanks,
                      .block = query::kConsumers,
                      .cluster = query::kRanks,
                      .shared = static_cast<size_t>(layout.bytes)},
                     [&] { add_in_cluster(p, sums); });
    return sums;
  }
  std::vector<float> apart() const {
    namespace heads = attention_in_kernel;
    std::vector<float> sums(kTokens);
    emulator::launch({.grid = kTokens, .block = kWarp}, [&] {
      float squares[heads::kLaneColumns];
      for (int i = 0; i < heads::kLaneColumns; ++i)
        squares[i] = square(static_cast<int>(threadIdx.x) * heads::kLaneColumns + i,
                            static_cast<int>(blockIdx.x));
      const float sum = query::SumOfRanks::of(squares);
      if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    });
    return sums;
  }

 private:
  float value(int column, int token) const {
    return values[static_cast<size_t>(token * query::kHeadWidth + column)];
  }
  float square(int column, int token) const {
    return attention_in_kernel::bf16_step(value(column, token) * value(column, token));
  }
  void add_in_cluster(const query::Params& p, std::vector<float>& sums) const {
    const query::Memory<Config> memory(p);
    const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(blockIdx.x);
    if (thread == 0) {
      memory.exchanged().init(1);
      ptx::fence_mbarrier_init();
      memory.exchanged().expect_tx(query::kRanks * Config::kSummed * sizeof(float));
      memory.exchanged().arrive();
    }
    __syncthreads();
    ptx::cluster_arrive_relaxed(), ptx::cluster_wait();
    query::Products<Config> products;
    const int first = rank * query::kRows + thread / (query::kConsumers / 2) * gemm::kTileRows;
    products.for_each(thread,
                      [&](float& to, int row, int token) { to = value(first + row, token); });
    query::send_squares(memory, products, rank, thread);
    memory.exchanged().wait_acquire_cluster(0);
    if (rank == 0 && thread < kTokens) {  // as normalize_rows()
      float sum = 0;
      for (int r = 0; r < query::kRanks; ++r)
        sum += memory.exchange()[r * Config::kSummed + thread];
      sums[static_cast<size_t>(thread)] = sum;
    }
    ptx::cluster_arrive_relaxed(), ptx::cluster_wait();
  }
};

TEST(QueriesEmulated, SquaresAreAddedInOneOrder) {
  Rng rng(11);
  for (int i = 0; i < 4; ++i) {
    HeadSums sums;
    // Magnitudes of many sizes, so that sums of few squares are rounded, too.
    for (int v = 0; v < HeadSums::kTokens * query::kHeadWidth; ++v)
      sums.values.push_back(attention_in_kernel::bf16_step(
          static_cast<float>(std::ldexp(rng.normal(), -static_cast<int>(rng.below(14))))));
    EXPECT_EQ(sums.fused(), sums.apart());
  }
}

}  // namespace
}  // namespace dsv4
