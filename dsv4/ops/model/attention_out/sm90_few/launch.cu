// Two launches: u = o wo_a^T as Q8, then y = u wo_b^T.

#include "dsv4/ops/gemm/few_gemm/launch_shape.cuh"
#include "dsv4/ops/model/attention_out/attention_out_impls.h"
#include "dsv4/ops/model/attention_out/sm90_few/launch.cuh"

namespace dsv4 {
namespace {

namespace few = attention_out_kernel::sm90_few;

struct U {
  TensorView codes, scales;  // [t, groups * r] E4M3, [t, groups * r / 128] E8M0
};

U take_u(Scratch& scratch, int64_t t, int64_t rows) {
  return {scratch.take(DType::kE4M3, {t, rows}),
          scratch.take(DType::kE8M0, {t, rows / few_gemm::kScaleColumns})};
}

few_gemm::Product product_of_wo_b(const AttentionOutArgs& args, const U& u) {
  return {.in = {.x = u.codes, .x_scale = u.scales}, .weight = args.wo_b, .out = args.y};
}

void run_wo_a(Device& device, const few_gemm::Product& p, const U& u) {
  if (device.is_dry_run()) return;
  const few_gemm::Shape shape = few::shape_of_wo_a(p);
  const few_gemm::Split split = few_gemm::make_split(shape, device.info().num_sms);
  const int tokens = few_gemm::tile_tokens(shape.tokens);
  const few::Params params = few::make_params(p, split, tokens, u.codes, u.scales, make_tma_map);
  few_gemm::with_tokens<few_gemm::Format::kFp8Bf16>(tokens, [&](auto config) {
    using C = decltype(config);
    launch(device, "attention_out_few", few_gemm::few_gemm_kernel<C, few::Params, few::StoreQ8>,
           few_gemm::launch_shape(shape, split, tokens), params);
  });
}

}  // namespace

const char* attention_out_sm90_few_reject(const Context& context, const AttentionOutArgs& args) {
  // With fewer, quantizing u in the second product, as parts do, takes no longer.
  const int64_t tokens = args.o.dim(0);
  if ((tokens <= few_gemm::kQuantizeTokens || tokens > few_gemm::kConvertTokens) &&
      !context.need_batch_invariant)
    return "for 5 to 8 tokens";
  if (args.wo_a.format != WeightFormat::kFp8Block || args.wo_b.format != WeightFormat::kFp8Block)
    return "for fp8 weights";
  if (args.wo_a.n / args.groups % few_gemm::kScaleColumns != 0)
    return "rows of a group must be a multiple of 128";
  if (const char* why = few_gemm::reject(context, few::product_of_wo_a(args))) return why;
  // Temporaries are aligned.
  const int64_t rows = args.wo_a.n;
  const U u{
      {TensorMeta::contiguous(DType::kE4M3, {tokens, rows}), nullptr},
      {TensorMeta::contiguous(DType::kE8M0, {tokens, rows / few_gemm::kScaleColumns}), nullptr}};
  return few_gemm::reject(context, product_of_wo_b(args, u));
}

void attention_out_sm90_few(const Context& context, const AttentionOutArgs& args) {
  Device& device = *context.device;
  const int64_t t = args.o.dim(0);
  if (t == 0) return;
  const Scratch::Scope scope(device.workspace());
  const U u = take_u(device.workspace(), t, args.wo_a.n);
  run_wo_a(device, few::product_of_wo_a(args), u);
  few_gemm::run(context, product_of_wo_b(args, u));
}

}  // namespace dsv4
