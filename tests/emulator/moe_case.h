// A random call of moe with a shared expert in FP8 or bit planes, and the kernels of sm90_few for
// it on the emulator.

#pragma once

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/sm90_few/call.cuh"
#include "dsv4/ops/model/moe/sm90_few/kernels.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/tensor_map.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

struct MoeScene {
  int64_t t, d, inner, e, k;  // inner: of the shared expert
  int num_sms = 2;
  Choice choice = Choice::kLearned;
  StoredAs stored{WeightFormat::kFp8Block};  // of the shared expert
};

struct MoeCase {
  Arena arena;
  std::vector<ExpertWeights> shared;
  MoeArgs args;
  moe_kernel::sm90_few::Intermediates temporaries;
  gemm::Activations x, hidden;  // Q8 of x, and a place for that of hidden values

  explicit MoeCase(const MoeScene& s) {
    Rng rng(static_cast<uint64_t>(s.t * 1000 + s.d + s.inner));
    shared = {{.w1 = random_weight(arena, rng, s.stored, s.inner, s.d),
               .w3 = random_weight(arena, rng, s.stored, s.inner, s.d),
               .w2 = random_weight(arena, rng, s.stored, s.d, s.inner)}};
    args = random_moe(
        arena, rng, {.t = s.t, .d = s.d, .e = s.e, .k = s.k, .choice = s.choice, .vocabulary = 20},
        [&] { return random_weight(arena, rng, {WeightFormat::kBF16}, s.e, s.d); });
    args.shared = shared;
    if (s.choice == Choice::kTies) {  // all logits are 0
      auto* values = const_cast<uint16_t*>(args.gate.data.as<uint16_t>());
      std::fill_n(values, args.gate.data.numel(), uint16_t{0});
    }
    temporaries = moe_kernel::sm90_few::make_intermediates(
        args, [&](DType dtype, std::initializer_list<int64_t> shape) {
          return arena.output(dtype, shape);
        });
    x = {.x = arena.input(DType::kE4M3, {s.t, s.d}),
         .x_scale = arena.input(DType::kE8M0, {s.t, s.d / gemm::kScaleColumns})};
    hidden = {.x = arena.output(DType::kE4M3, {s.t, s.inner}),
              .x_scale = arena.output(DType::kE8M0, {s.t, s.inner / gemm::kScaleColumns})};
    quantize(args.x, x, 0, s.t);
  }

  // Q8 of rows first .. end - 1 of `from`.
  static void quantize(const ConstTensorView& from, const gemm::Activations& to, int64_t first,
                       int64_t end) {
    const auto groups = to.x_scale.dim(1);
    for (int64_t i = first * groups; i < end * groups; ++i) {
      float values[gemm::kScaleColumns];
      const bf16* const group =
          from.row<bf16>(i / groups) + i % groups * int64_t{gemm::kScaleColumns};
      for (int c = 0; c < gemm::kScaleColumns; ++c) values[c] = to_float(group[c]);
      auto* const codes = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(to.x.data));
      reinterpret_cast<uint8_t*>(const_cast<std::byte*>(to.x_scale.data))[i] =
          quantize_group_q8(values, gemm::kScaleColumns, codes + i * gemm::kScaleColumns);
    }
  }
};

// Tiles of more tokens than these take Q8 that is stored.
inline bool takes_codes(const MoeCase& c) {
  return c.args.x.dim(0) > gemm::kResidentTokens;
}

inline CUtensorMap emulated_map(const TmaBox& box) {
  return emulator::make_tma_map(box);
}

inline emulator::Kernel moe_inputs(const MoeCase& c,
                                   const moe_kernel::sm90_few::Intermediates& temporaries,
                                   int num_sms) {
  namespace few = moe_kernel::sm90_few;
  const few::InputTargets targets(c.args, temporaries);
  const gemm::TwoFormats formats = few::formats_of_inputs(c.args, targets, num_sms);
  emulator::Kernel kernel{{.grid = {static_cast<int>(formats.ctas()),
                                    static_cast<int>(ceil_div(formats.q8.tokens, formats.tokens))},
                           .block = gemm::kThreads,
                           .cluster = formats.split.q8.ranks(),
                           .shared = static_cast<size_t>(formats.shared()),
                           .pdl = true,
                           .resident = 2},
                          {}};
  gemm::with_q8_config(formats.q8.format, formats.tokens, [&](auto config) {
    kernel.body = [params = few::make_input_params(
                       formats, c.args, targets, temporaries,
                       takes_codes(c) ? c.x : gemm::Activations{.x = c.args.x, .quantize = true},
                       emulated_map)] { few::inputs_kernel<decltype(config)>()(params); };
  });
  return kernel;
}

// In place of quantize_q8 between them: Q8 of the hidden values, of a token by each thread.
inline emulator::Kernel quantize_hidden(const MoeCase& c) {
  const int64_t t = c.args.x.dim(0);
  return {{.block = static_cast<int>(align_up(t, kWarp)), .pdl = true}, [&c, t] {
            ptx::griddepcontrol_launch_dependents();
            ptx::griddepcontrol_wait();
            const int64_t token = threadIdx.x;
            if (token < t) MoeCase::quantize(c.temporaries.hidden, c.hidden, token, token + 1);
          }};
}

inline emulator::Kernel moe_down(const MoeCase& c,
                                 const moe_kernel::sm90_few::Intermediates& temporaries,
                                 int num_sms) {
  namespace few = moe_kernel::sm90_few;
  gemm::Product p = few::product_of_w2(c.args, temporaries);
  if (takes_codes(c)) p.in = c.hidden;
  const gemm::Shape shape = gemm::shape_of(p.weight, p.in, 1);
  const gemm::Split split = gemm::make_split(shape, num_sms);
  const int tokens = gemm::tile_tokens(shape);
  const few::DownParams params =
      few::make_down_params(p, few::router_args(c.args, temporaries), split, tokens, emulated_map);
  emulator::Kernel kernel{
      {.grid = {params.product_ctas + params.routing_ctas,
                static_cast<int>(ceil_div(shape.tokens, tokens))},
       .block = gemm::kThreads,
       .cluster = split.ranks(),
       .shared = static_cast<size_t>(gemm::Layout(shape.format, tokens, split).bytes),
       .pdl = true,
       .resident = 2},
      {}};
  gemm::with_q8_config(shape.format, tokens, [&](auto config) {
    kernel.body = [params] { few::down_kernel<decltype(config)>(params); };
  });
  return kernel;
}

}  // namespace dsv4::test
