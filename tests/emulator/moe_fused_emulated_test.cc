// The launches of moe/sm90_fused on the emulator: inputs, routing with gate and up and the shared
// w2, down with the sums; and the two parts of ranks. Beside the oracle, the bits of sm90_few.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "dsv4/comm/shard_id.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/sm90_fused/down.cuh"
#include "dsv4/ops/model/moe/sm90_fused/gate_up.cuh"
#include "dsv4/ops/model/moe/sm90_fused/parts_of_ranks_call.cuh"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/kernel.cuh"
#include "tests/emulator/moe_case.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace fused = moe_kernel::sm90_fused;
using test::Choice;

struct Scene {
  test::MoeScene moe;  // num_sms: CTAs of gate and up, too
  int64_t inner;       // of the routed experts
  int runs = 4;
};

struct Case : test::MoeCase {
  std::vector<ExpertWeights> file;
  MoeArgs file_args;
  TensorView hidden;

  Case(const Scene& s, const test::ImageSource& up, const test::ImageSource& down)
      : MoeCase(s.moe) {
    Rng rng(static_cast<uint64_t>(s.inner + s.moe.e));
    file = test::experts_with_images(arena, rng, s.moe.e, s.moe.d, s.inner, up, down);
    file_args = args;
    file_args.routed = file;
    args.routed = test::pack_images(arena, file);
  }
  fused::Intermediates temporaries(Scratch& scratch) const {
    return fused::make_intermediates(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
      return scratch.take(dtype, shape);
    });
  }
};

emulator::Launch launch_of(int ctas, size_t shared, int threads) {
  return {.grid = ctas, .block = threads, .shared = shared, .pdl = true, .resident = 2};
}

// The instances of a kind of image.
template <int K_, ImageScale kScale_ = ImageScale::kE4M4>
struct Kind {
  static constexpr int K = K_;
  static constexpr ImageScale kScale = kScale_;
  using Shared = fused::Shared<K, kScale>;
};

template <class T>
emulator::Kernel gate_up(const Case& c, const fused::Intermediates& between, int num_sms) {
  emulator::Kernel kernel{launch_of(num_sms, sizeof(typename T::Shared), fused::kThreads), {}};
  fused::with_shared_config(fused::format_of_shared(c.args, between.inputs), [&](auto config) {
    kernel.body = [p = fused::make_gate_up_params(c.args, between, num_sms, test::emulated_map)] {
      fused::gate_up_kernel<T::K, T::kScale, decltype(config)>(p);
    };
  });
  return kernel;
}

template <class T>
emulator::Kernel down(const Case& c, const fused::Intermediates& between) {
  const fused::DownParams p = fused::make_down_params(c.args, between);
  return {launch_of(static_cast<int>(ceil_div(p.routed.rows, fused::kDownRows)),
                    sizeof(typename T::Shared), fused::kThreads),
          [p, two = c.args.x.dim(0) == 2] {
            two ? fused::down_kernel<T::K, T::kScale, 2>(p)
                : fused::down_kernel<T::K, T::kScale, 1>(p);
          }};
}

// Twice in a stream, so that the second call overwrites what the first one reads.
template <class Up, class Down>
void run_fused(const Case& c, const Scene& s, int seed) {
  Scratch scratch;
  const fused::Intermediates between = c.temporaries(scratch);
  ASSERT_EQ(fused::reject_shape(c.args, between, s.moe.num_sms), nullptr);
  std::vector<emulator::Kernel> kernels{emulator::touching({c.args.x, c.args.ids})};
  for (int call = 0; call < 2; ++call) {
    kernels.push_back(test::moe_inputs(c, between.inputs, s.moe.num_sms));
    kernels.push_back(emulator::touching(test::placed(c.args.routed.images())));
    kernels.push_back(gate_up<Up>(c, between, s.moe.num_sms));
    kernels.push_back(down<Down>(c, between));
  }
  kernels.push_back(emulator::touching({c.args.acc}));
  emulator::launch_stream(kernels, static_cast<uint64_t>(seed));
}

// The five launches of sm90_few, the last one on the host.
template <class Up, class Down>
std::vector<float> bits_of_few(const Case& c, int num_sms) {
  using namespace experts_kernel::sm90_few_e4m3;
  Scratch scratch;
  const fused::Intermediates between = c.temporaries(scratch);
  const ExpertsArgs routed = fused::routed_args(c.args, between);
  const experts_kernel::Call call = experts_kernel::make_call(routed, num_sms, kReader, scratch);
  const auto products = [&](size_t shared) { return launch_of(num_sms, shared, kThreads); };
  emulator::launch_stream(
      {test::moe_inputs(c, between.inputs, num_sms),
       test::moe_down(c, between.inputs, num_sms),
       {products(sizeof(SharedOf<Up::K, Up::kScale, kMaxColumns>)),
        [&] { few_kernel<Up::K, Up::kScale, true, kMaxColumns>(call.gate_up); }},
       {products(sizeof(SharedOf<Down::K, Down::kScale, kMaxColumns>)),
        [&] { few_kernel<Down::K, Down::kScale, false, kMaxColumns>(call.down); }}},
      0);
  const int64_t t = c.args.x.dim(0), d = c.args.x.dim(1), k = c.args.experts_per_token;
  std::vector<float> acc(static_cast<size_t>(t * d));
  for (int64_t token = 0; token < t; ++token) {
    std::vector<int32_t> pairs(call.lists.pair_of + token * k,
                               call.lists.pair_of + (token + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (int64_t i = 0; i < d; ++i) {
      float& sum = acc[static_cast<size_t>(token * d + i)];
      for (const int32_t pair : pairs) sum += bf16_to_f32(call.y.row<uint16_t>(pair)[i]);
      sum += bf16_to_f32(between.inputs.y.row<uint16_t>(token)[i]);
    }
  }
  return acc;
}

template <class Up, class Down>
void check_kinds(const Scene& s, const test::ImageSource& up, const test::ImageSource& down) {
  SCOPED_TRACE(fmt::format("{} {} t {} d {} inner {} {} e {} k {} {}", name(up), name(down),
                           s.moe.t, s.moe.d, s.inner, s.moe.inner, s.moe.e, s.moe.k,
                           name(s.moe.stored)));
  Case c(s, up, down);
  const std::vector<double> want = moe_oracle({}, c.file_args);
  const std::vector<float> few = bits_of_few<Up, Down>(c, s.moe.num_sms);
  emulator::check_runs(
      c.arena, s.runs, [&](int seed) { run_fused<Up, Down>(c, s, seed); },
      [&] {
        // As in moe_test.cc.
        EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 2e-5}), "");
        EXPECT_TRUE(std::equal(few.begin(), few.end(), c.args.acc.as<float>()))
            << "other bits than sm90_few";
      });
}

template <int K, int kDownK = K>
void check(const Scene& s) {
  check_kinds<Kind<K>, Kind<kDownK>>(s, K, kDownK);
}

// Each expert in memory of its own, which a kernel before gate_up wrote: the bits of sm90_few when
// it reads the experts of one block.
template <class Up, class Down>
void check_anywhere(const Scene& s, const test::ImageSource& up, const test::ImageSource& down) {
  SCOPED_TRACE(fmt::format("t {} e {} k {}", s.moe.t, s.moe.e, s.moe.k));
  Case c(s, up, down);
  const std::vector<float> few = bits_of_few<Up, Down>(c, s.moe.num_sms);
  c.args.routed = test::scattered(c.arena, c.args.routed.images());
  EXPECT_TRUE((bits_of_few<Up, Down>(c, s.moe.num_sms) == few)) << "sm90_few";
  emulator::check_runs(
      c.arena, s.runs, [&](int seed) { run_fused<Up, Down>(c, s, seed); },
      [&] {
        EXPECT_TRUE(std::equal(few.begin(), few.end(), c.args.acc.as<float>())) << "sm90_fused";
      });
}

// An even and an odd number of entries, one token and two, gate and up of another format.
TEST(MoeFusedEmulated, ReadsExpertsThroughATable) {
  using Mx = Kind<4, ImageScale::kUe8m0>;
  const Scene one{{.t = 1, .d = 128, .inner = 128, .e = 9, .k = 3, .num_sms = 5}, 64};
  const Scene two{{.t = 2, .d = 128, .inner = 128, .e = 9, .k = 3, .num_sms = 5}, 96, 2};
  for (const Scene& s : {one, two}) {
    check_anywhere<Kind<3>, Kind<3>>(s, 3, 3);
    check_anywhere<Mx, Mx>(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
  }
  check_anywhere<Kind<2>, Mx>(two, 2, WeightFormat::kMxfp4);
}

// 1, 2 and 4 shares of the shared expert's rows; 8 and 12 experts a lane.
TEST(MoeFusedEmulated, Learned) {
  check<3>({{.t = 1, .d = 128, .inner = 128, .e = 6, .k = 2, .num_sms = 5}, 64});
  check<3>({{.t = 2, .d = 384, .inner = 256, .e = 70, .k = 3, .num_sms = 12}, 96});
  check<2, 4>({{.t = 1, .d = 128, .inner = 512, .e = 256, .k = 6, .num_sms = 4}, 32});
  check<4, 2>({{.t = 2, .d = 128, .inner = 640, .e = 384, .k = 8, .num_sms = 7}, 32});
}

// An item's activations fill the room for them, so that each overwrites those before. Then an odd
// number of entries, of which some CTAs have none.
TEST(MoeFusedEmulated, ManyItems) {
  check<3>({{.t = 2, .d = 128, .inner = 128, .e = 9, .k = 2, .num_sms = 5}, 3104});
  check<3>({{.t = 1, .d = 128, .inner = 128, .e = 9, .k = 3, .num_sms = 7}, 32});
}

// Equal keys: the lowest experts.
TEST(MoeFusedEmulated, Ties) {
  check<3>(
      {{.t = 1, .d = 128, .inner = 128, .e = 300, .k = 3, .num_sms = 4, .choice = Choice::kTies},
       32});
  check<3>(
      {{.t = 2, .d = 128, .inner = 128, .e = 12, .k = 6, .num_sms = 4, .choice = Choice::kTies},
       32});
}

// A row of a random table has an expert twice now and then.
TEST(MoeFusedEmulated, Hash) {
  check<3>(
      {{.t = 1, .d = 128, .inner = 128, .e = 6, .k = 6, .num_sms = 4, .choice = Choice::kHash32},
       64});
  check<3>(
      {{.t = 2, .d = 128, .inner = 128, .e = 6, .k = 6, .num_sms = 4, .choice = Choice::kHash64},
       64});
}

// 1, 2 and 4 shares; an odd number of slabs in them; rows that end inside a tile of 32.
TEST(MoeFusedEmulated, SharedExpertOfBitPlanes) {
  const test::StoredAs k5{WeightFormat::kKbit, 5, true}, k4{WeightFormat::kKbit, 4, true};
  check<3>({{.t = 1, .d = 256, .inner = 256, .e = 6, .k = 2, .num_sms = 9, .stored = k5}, 64});
  check<3>({{.t = 2, .d = 256, .inner = 512, .e = 70, .k = 3, .num_sms = 12, .stored = k5}, 96});
  check<2>({{.t = 2, .d = 512, .inner = 1792, .e = 9, .k = 2, .num_sms = 17, .stored = k4}, 32});
  check<4>({{.t = 1, .d = 256, .inner = 1024, .e = 9, .k = 2, .num_sms = 8, .stored = k5}, 32});
}

// One and two tokens; an expert twice in a row of the table; items that fill the room; a format
// each for gate and up and for down.
TEST(MoeFusedEmulated, Fp4) {
  using Mx = Kind<4, ImageScale::kUe8m0>;
  using Nv = Kind<4, ImageScale::kE4M3>;
  constexpr WeightFormat kMx = WeightFormat::kMxfp4, kNv = WeightFormat::kNvfp4;
  const Scene one{{.t = 1, .d = 128, .inner = 128, .e = 6, .k = 2, .num_sms = 5}, 64};
  const Scene two{{.t = 2, .d = 384, .inner = 256, .e = 70, .k = 3, .num_sms = 12}, 96};
  const Scene twice{
      {.t = 2, .d = 128, .inner = 128, .e = 6, .k = 6, .num_sms = 4, .choice = Choice::kHash32},
      64};
  const Scene many{{.t = 2, .d = 128, .inner = 128, .e = 9, .k = 2, .num_sms = 5}, 3104};
  for (const Scene& s : {one, two, twice, many}) {
    check_kinds<Mx, Mx>(s, kMx, kMx);
    check_kinds<Nv, Nv>(s, kNv, kNv);
  }
  check_kinds<Nv, Kind<3>>(two, kNv, 3);
  check_kinds<Kind<2>, Mx>(two, 2, kMx);
}

// The parts of ranks, one after the other in one stream. h of all of them is in one memory, as if
// it had been exchanged. The bits are those of the whole block.
template <class Up, class Down>
void check_ranks(const Scene& s, int world, const test::ImageSource& up,
                 const test::ImageSource& down) {
  SCOPED_TRACE(fmt::format("{} {} d {} inner {} {} e {} k {}, {} ranks", name(up), name(down),
                           s.moe.d, s.inner, s.moe.inner, s.moe.e, s.moe.k, world));
  Case c(s, up, down);
  const std::vector<float> few = bits_of_few<Up, Down>(c, s.moe.num_sms);
  const int64_t k = s.moe.k;
  Scratch scratch;
  const fused::Intermediates between = c.temporaries(scratch);
  const TensorView h = scratch.take(DType::kBF16, {k, s.inner});
  const TensorView chosen = scratch.take(DType::kI32, {1, k});
  std::vector<emulator::Kernel> first, second;
  std::deque<std::vector<ExpertWeights>> rows;
  for (int rank = 0; rank < world; ++rank) {
    const ShardId id{rank, world};
    const ShardId::Rows inner = id.rows(s.inner, 32), out = id.rows(s.moe.d, 128);
    std::vector<ExpertWeights>& own = rows.emplace_back();
    for (const ExpertWeights& e : c.file)
      own.push_back({e.w1.rows(inner.begin, inner.end), e.w3.rows(inner.begin, inner.end),
                     e.w2.rows(out.begin, out.end)});
    const ExpertStack routed = test::pack_images(c.arena, own);
    const MoeHiddenArgs hidden{.x = c.args.x,
                               .ids = c.args.ids,
                               .gate = c.args.gate,
                               .bias = c.args.bias,
                               .tid2eid = c.args.tid2eid,
                               .routed = routed,
                               .route_scale = c.args.route_scale,
                               .normalize = c.args.normalize,
                               .swiglu_limit = c.args.swiglu_limit,
                               .logits = between.inputs.logits,
                               .chosen = chosen,
                               .hidden = h.slice(1, inner.begin, inner.end)};
    first.push_back({launch_of(s.moe.num_sms, sizeof(typename Up::Shared), fused::kThreads),
                     [p = fused::make_gate_up_params(hidden)] {
                       fused::gate_up_kernel<Up::K, Up::kScale, fused::SharedConfig>(p);
                     }});
    const ExpertWeights& shared = c.args.shared.file()[0];
    std::vector<ExpertWeights>& own_shared = rows.emplace_back();
    own_shared.push_back({{}, {}, shared.w2.rows(out.begin, out.end)});
    const MoeOutputArgs output{.hidden = h,
                               .shared_hidden = between.inputs.hidden,
                               .chosen = chosen,
                               .logits = between.inputs.logits,
                               .ids = c.args.ids,
                               .bias = c.args.bias,
                               .tid2eid = c.args.tid2eid,
                               .routed = routed,
                               .shared = own_shared,
                               .acc = c.args.acc.slice(1, out.begin, out.end),
                               .first = {.logits_are_complete = rank > 0}};
    constexpr int kRows = fused::DownShape<1, fused::SharedConfig>::kRows;
    ASSERT_EQ(fused::reject_shape(output, 1000), nullptr);
    second.push_back({launch_of(static_cast<int>(ceil_div(out.count(), kRows)),
                                sizeof(typename Down::Shared), fused::kThreads),
                      [p = fused::make_down_params(output, 1000, test::emulated_map)] {
                        fused::down_kernel<Down::K, Down::kScale, 1, fused::SharedConfig>(p);
                      }});
  }
  std::vector<emulator::Kernel> kernels{emulator::touching({c.args.x, c.args.ids}),
                                        test::moe_inputs(c, between.inputs, s.moe.num_sms)};
  kernels.insert(kernels.end(), first.begin(), first.end());
  kernels.push_back(emulator::touching({h, between.inputs.hidden}));
  kernels.insert(kernels.end(), second.begin(), second.end());
  emulator::check_runs(
      c.arena, s.runs,
      [&](int seed) { emulator::launch_stream(kernels, static_cast<uint64_t>(seed)); },
      [&] {
        EXPECT_TRUE(std::equal(few.begin(), few.end(), c.args.acc.as<float>()))
            << "other bits than the whole block";
      });
}

// One and two items, the second of one entry or full; an expert twice; one and four shares of the
// shared expert's columns; ranks of unequal shares.
TEST(MoeFusedEmulated, PartsOfRanks) {
  using Mx = Kind<4, ImageScale::kUe8m0>;
  constexpr WeightFormat kMx = WeightFormat::kMxfp4;
  check_ranks<Kind<3>, Kind<3>>(
      {{.t = 1, .d = 256, .inner = 128, .e = 6, .k = 2, .num_sms = 5}, 64}, 2, 3, 3);
  check_ranks<Mx, Mx>({{.t = 1, .d = 384, .inner = 2048, .e = 70, .k = 6, .num_sms = 12}, 96}, 3,
                      kMx, kMx);
  check_ranks<Mx, Kind<2>>(
      {{.t = 1, .d = 256, .inner = 128, .e = 6, .k = 6, .num_sms = 4, .choice = Choice::kHash32},
       64},
      2, kMx, 2);
  check_ranks<Kind<3>, Mx>({{.t = 1, .d = 384, .inner = 256, .e = 9, .k = 5, .num_sms = 5}, 2048},
                           2, 3, kMx);
}

TEST(MoeFusedEmulated, WideRows) {
  check<3>({{.t = 2, .d = 4096, .inner = 128, .e = 3, .k = 1, .num_sms = 128}, 32, 1});
}

}  // namespace
}  // namespace dsv4
