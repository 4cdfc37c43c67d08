// The implementations sm90_few and sm90_few_kbit of linear.h: few tokens, each weight read once
// (gemm/sm90); and sm90_many, which gives many tokens the bits of sm90_few.

#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/gemm/sm90/large_m.h"
#include "dsv4/ops/gemm/sm90/plan.h"
#include "dsv4/ops/gemm/sm90/small_m.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel {
namespace {

// More tiles than this many of a cluster: the output head. Sums of every tile are exchanged, and
// kernels without an exchange are faster where they are bound by memory: one token by the GEMV
// kernels, 16 or more by cuBLASLt.
constexpr int64_t kLargeWeight = int64_t{256} << 20;  // bytes
constexpr int64_t kManyTokens = 16;

bool is_faster_elsewhere(const LinearArgs& args) {
  const int64_t t = args.x.dim(0);
  return args.weight.bytes() > kLargeWeight && (t == 1 || t >= kManyTokens);
}

gemm::Product product_of(const LinearArgs& args) {
  return {.in = {.x = args.x, .x_scale = args.x_scale, .quantize = args.quantize_x},
          .weight = args.weight,
          .out = args.out,
          .groups = args.groups};
}

// Whether the kernel multiplies x in f16, and there are so many tokens that x is written as such
// first (gemm/x/stored_f16.cuh).
bool stores_f16(const LinearArgs& args) {
  return args.x.dtype == DType::kBF16 && !args.quantize_x &&
         args.weight.format == WeightFormat::kFp8Block && args.x.dim(0) > gemm::kConvertTokens;
}

}  // namespace

namespace sm90_few {

const char* reject(const Context& context, const LinearArgs& args) {
  if (const char* why = reject_f16(args)) return why;
  // Where the bits of a token must not depend on the batch, larger batches take the same kernel.
  if (args.x.dim(0) > gemm::kMaxTokens && !context.need_batch_invariant)
    return "for up to 64 tokens";
  if (args.quantize_x && args.x.dim(0) > gemm::kQuantizeTokens) return "many tokens to quantize";
  if (!context.need_batch_invariant && is_faster_elsewhere(args)) return "a large weight";
  if (stores_f16(args) && !args.x.is_contiguous() && !context.need_batch_invariant)
    return "many tokens to convert whose rows are strided";
  return gemm::reject(context, product_of(args));
}

void run(const Context& context, const LinearArgs& args) {
  gemm::Product product = product_of(args);
  if (!stores_f16(args) || !args.x.is_contiguous()) return gemm::run(context, product);
  Scratch& scratch = context.device->workspace();
  const Scratch::Scope scope(scratch);
  const int64_t t = args.x.dim(0), columns = args.x.dim(1);
  const gemm::StoredF16 x{.values = scratch.take(DType::kF16, {t, columns}),
                          .scales = scratch.take(DType::kE8M0, {t, columns / kActivationGroup})};
  gemm::store_f16(*context.device, args.x, x);
  product.in = x.activations();
  gemm::run(context, product);
}

}  // namespace sm90_few

namespace sm90_few_kbit {

const char* reject(const Context& context, const LinearArgs& args) {
  if (const char* why = reject_f16(args)) return why;
  if (args.x.dim(0) > gemm::kKbitTokens && !context.need_batch_invariant)
    return "for up to 8 tokens";
  if (args.quantize_x && args.x.dim(0) > gemm::kQuantizeTokens) return "many tokens to quantize";
  return gemm::reject_kbit(context, product_of(args));
}

void run(const Context& context, const LinearArgs& args) {
  gemm::run(context, product_of(args));
}

}  // namespace sm90_few_kbit

namespace sm90_many {

const char* reject(const Context& context, const LinearArgs& args) {
  if (const char* why = reject_f16(args)) return why;
  if (!gemm::large_m::takes(context, args.x.dim(0), gemm::large_m::kFewTokens))
    return "for more than 64 tokens where bits must not depend on the batch";
  return gemm::large_m::reject(context, product_of(args));
}

void run(const Context& context, const LinearArgs& args) {
  gemm::large_m::run(context, product_of(args));
}

}  // namespace sm90_many

}  // namespace dsv4::linear_kernel
