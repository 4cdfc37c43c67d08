// Two launches: u = o wo_a^T as Q8, then y = u wo_b^T. With more than a few tokens one before
// them, which stores o in f16. The products of a prompt are those of gemm/sm90/large_m, with o in
// f16 for some of its tokens at a time: all of o would be hundreds of megabytes.

#include "dsv4/ops/gemm/sm90/small_m/launch_shape.cuh"
#include "dsv4/ops/model/attention_out/sm90_few/launch.cuh"

namespace dsv4::attention_out_kernel::sm90_few {
namespace {

U take_u(Scratch& scratch, int64_t t, int64_t rows) {
  return {scratch.take(DType::kE4M3, {t, rows}),
          scratch.take(DType::kE8M0, {t, rows / gemm::kScaleColumns})};
}

void run_wo_a(const Context& context, const gemm::Product& p, const U& u) {
  Device& device = *context.device;
  if (device.is_dry_run()) return;
  const gemm::Shape shape = shape_of_wo_a(p, context.need_batch_invariant);
  const gemm::Split split = gemm::make_split(shape, device.info().num_sms);
  const int tokens = gemm::tile_tokens(shape);
  const Params params = make_params(p, split, tokens, u.codes, u.scales, make_tma_map);
  gemm::with_tokens<gemm::Format::kFp8Bf16>(tokens, [&](auto config) {
    using C = decltype(config);
    launch(device, "attention_out_few", gemm::small_m_kernel<C, Params, StoreQ8>,
           gemm::launch_shape(shape, split, tokens), params);
  });
}

}  // namespace

const char* reject(const Context& context, const AttentionOutArgs& args) {
  // With fewer, quantizing u in the second product, as parts do, takes no longer.
  const int64_t tokens = args.o.dim(0);
  const bool few = tokens > gemm::kQuantizeTokens && tokens <= gemm::kMaxTokens;
  if (!few && !context.need_batch_invariant) return "for 5 to 64 tokens";
  if (args.wo_a.format != WeightFormat::kFp8Block || args.wo_b.format != WeightFormat::kFp8Block)
    return "for fp8 weights";
  if (args.wo_a.n / args.groups % gemm::kScaleColumns != 0)
    return "rows of a group must be a multiple of 128";
  if (const char* why = gemm::reject(context, product_of_wo_a(args, {.x = rows_of_o(args)})))
    return why;
  // Temporaries are aligned.
  const int64_t rows = args.wo_a.n;
  const U u{{TensorMeta::contiguous(DType::kE4M3, {tokens, rows}), nullptr},
            {TensorMeta::contiguous(DType::kE8M0, {tokens, rows / gemm::kScaleColumns}), nullptr}};
  return gemm::reject(context, product_of_wo_b(args, u));
}

void run(const Context& context, const AttentionOutArgs& args) {
  Device& device = *context.device;
  const int64_t t = args.o.dim(0);
  if (t == 0) return;
  const Scratch::Scope scope(device.workspace());
  const U u = take_u(device.workspace(), t, args.wo_a.n);
  if (takes_many(context, t)) return run_many(context, args, u);
  gemm::Activations o{.x = rows_of_o(args)};
  if (t > gemm::kConvertTokens && t <= gemm::kMaxTokens) o = store_o(device, args).activations();
  run_wo_a(context, product_of_wo_a(args, o), u);
  gemm::run(context, product_of_wo_b(args, u));
}

}  // namespace dsv4::attention_out_kernel::sm90_few
