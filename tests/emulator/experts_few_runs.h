// The kernels of sm90_few, sm90_few_e4m3 and sm90_wide as streams for the emulator: list of pairs,
// gate and up, down, which start early; of all experts at once or in turns.

#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "dsv4/ops/gemm/sm90/experts/list_pairs.cuh"
#include "dsv4/ops/parts/experts/image_call.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "dsv4/ops/parts/experts/sm90_few/kernel.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/kernel.cuh"
#include "tests/emulator/experts_in_turns.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/touching.h"

namespace dsv4::emulator {

namespace f16 = experts_kernel::sm90_few;
using gemm::experts::Params;
using test::ImagesCase;

struct Run {
  uint64_t seed;
  int ctas;
};
inline constexpr Run kFewRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

template <int K>
struct F16 {
  static constexpr gemm::experts::Reader kReader = f16::kReader;
  static constexpr int kThreads = f16::kThreads;
  template <bool kGateUp>
  using Shared = f16::Shared<K>;
  template <bool kGateUp>
  static void run(const Params& p) {
    f16::few_kernel<K, kGateUp>(p);
  }
};

// kColumns: of gate and up, at most
template <int K, int kColumns = gemm::experts_e4m3::kMaxColumns,
          ImageScale kScale = ImageScale::kE4M4>
struct E4M3 {
  static constexpr gemm::experts::Reader kReader = gemm::experts_e4m3::kReader;
  static constexpr int kThreads = gemm::experts_e4m3::kThreads;
  template <bool kGateUp>
  static constexpr int kMost = kGateUp ? kColumns : gemm::experts_e4m3::kMaxColumns;
  template <bool kGateUp>
  using Shared = gemm::experts_e4m3::SharedOf<K, kScale, kMost<kGateUp>>;
  template <bool kGateUp>
  static void run(const Params& p) {
    experts_kernel::sm90_few_e4m3::few_kernel<K, kScale, kGateUp, kMost<kGateUp>>(p);
  }
};
template <int K>
using Wide = E4M3<K, gemm::experts_e4m3::kWideColumns>;
template <WeightFormat kFormat, int kColumns = gemm::experts_e4m3::kMaxColumns>
using Fp4 =
    E4M3<4, kColumns, kFormat == WeightFormat::kMxfp4 ? ImageScale::kUe8m0 : ImageScale::kE4M3>;

template <class Kernels, bool kGateUp>
Kernel kernel(const Params& p, const Run& how) {
  return {{.grid = how.ctas,
           .block = Kernels::kThreads,
           .shared = sizeof(typename Kernels::template Shared<kGateUp>),
           .pdl = p.starts_early,
           .resident = 2},
          [p] { Kernels::template run<kGateUp>(p); }};
}

// acc[t] += y of the pairs of token t, which are in order of expert.
inline void combine(const ExpertsArgs& args, const experts_kernel::Call& call) {
  const int64_t k = slots(args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    std::vector<int32_t> pairs(call.lists.pair_of + t * k, call.lists.pair_of + (t + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (const int32_t pair : pairs)
      for (int64_t i = 0; i < args.x.dim(1); ++i)
        args.acc.row<float>(t)[i] += bf16_to_f32(call.y.row<uint16_t>(pair)[i]);
  }
}

inline Kernel list_of(const gemm::experts::Choices& choices,
                      const gemm::experts::PairLists& lists) {
  return {{.block = gemm::experts::kListThreads, .pdl = true},
          [choices, lists] { gemm::experts::list_pairs_kernel<>(choices, lists); }};
}

// in_turns: if its images are those of `args`
template <class Kernels>
void run_few(const ExpertsArgs& args, const Run& how, const ExpertsInTurns* in_turns = nullptr) {
  Scratch scratch;
  const experts_kernel::Call call =
      experts_kernel::make_call(args, how.ctas, Kernels::kReader, scratch);
  const auto product = [&]<bool kGateUp>(const Params& p) {
    return kernel<Kernels, kGateUp>(p, {how.seed, p.ctas});
  };
  std::vector<Kernel> kernels;
  if (in_turns == nullptr) {
    kernels.push_back(touching(test::placed(args.stack.images())));
    if (call.needs_list()) kernels.push_back(list_of(experts_kernel::choices_of(args), call.lists));
    kernels.push_back(product.template operator()<true>(call.gate_up));
    kernels.push_back(product.template operator()<false>(call.down));
  } else {
    for (int turn = 0; turn < in_turns->count(); ++turn) {
      experts_kernel::Call of_turn = call.of_turn(turn, turn % 2);
      if (of_turn.needs_list())
        kernels.push_back(list_of(experts_kernel::choices_of(args, turn), of_turn.lists));
      kernels.push_back(in_turns->bring(turn));
      of_turn.gate_up.starts_early = false;
      kernels.push_back(product.template operator()<true>(of_turn.gate_up));
      kernels.push_back(product.template operator()<false>(of_turn.down));
    }
  }
  launch_stream(kernels, how.seed);
  combine(args, call);
}

// acc, which was zero, after the first `tokens` tokens.
template <class Kernels>
std::vector<float> result_of(const ImagesCase& c, int64_t tokens, const Run& how,
                             const ExpertsInTurns* in_turns = nullptr) {
  ExpertsArgs args = c.args;
  const TensorView acc = c.args.acc.slice(0, 0, tokens);
  args.x = args.x.slice(0, 0, tokens), args.acc = acc;
  args.experts = args.experts.slice(0, 0, tokens), args.weights = args.weights.slice(0, 0, tokens);
  std::fill_n(acc.as<float>(), acc.numel(), 0.f);
  run_few<Kernels>(args, how, in_turns);
  return {acc.as<float>(), acc.as<float>() + acc.numel()};
}

}  // namespace dsv4::emulator
