// The implementation sm90_mma of experts.h: kernel images, many tokens. Q8 of x, plan, gate
// and up, SwiGLU, down, combine; one launch each.

#include <algorithm>

#include "dsv4/ops/gemm/sm90_image/image_mma.h"
#include "dsv4/ops/parts/experts/cuda/plan.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4::experts_kernel::sm90_mma {
namespace {

using gemm::sm90_image::ImageProblem;

ImageProblem product(const ConstTensorView& x, const TensorView& out, int64_t n, int projections) {
  return {.problem = {.x = x.data,
                      .x_dtype = x.dtype,
                      .x_stride = x.row_stride(),
                      .out = out.data,
                      .out_is_bf16 = true,
                      .out_stride = out.row_stride(),
                      .n = static_cast<int>(n),
                      .k = static_cast<int>(x.dim(1)),
                      .projections = projections,
                      .m = out.dim(0)}};
}

void take_image(ImageProblem& to, const KbitImage& image, const ConstTensorView& bytes,
                const Codebook& codebook, const float* scale2) {
  to.images = bytes.data;
  to.image_bytes = image.bytes();
  to.codebook = codebook;
  to.scale = image.scale;
  to.scale2 = scale2;
  to.scale2_stride = 3;
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (!args.stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (args.experts.empty()) return "for routed experts";
  if (args.stack.size() > kMaxExperts) return "more than 384 experts";
  return nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const ExpertImages& images = args.stack.images();
  const int64_t t = args.x.dim(0), pairs = t * slots(args), d = args.x.dim(1);
  const int64_t inner = args.stack.inner();
  const TensorView gate_up = scratch.take(DType::kBF16, {pairs, 2 * inner});
  const TensorView hidden = scratch.take(DType::kBF16, {pairs, inner});
  const TensorView y = scratch.take(DType::kBF16, {pairs, d});
  const TensorView x = scratch.take(DType::kBF16, {t, d});
  ImageProblem up = product(x, gate_up, inner, 2), down = product(hidden, y, d, 1);
  take_image(up, images.gate_up, images.gate_up_bytes, images.gate_up_codebook,
             images.scale2.as<float>());
  take_image(down, images.down, images.down_bytes, images.down_codebook,
             images.scale2.as<float>() + 2);
  const int tile = std::max(32, mma_tile(device, up.problem, args.stack.size()));

  experts_quantize(device, args.x, x);
  const ExpertPlan plan = make_expert_plan(device, args, tile, {});
  up.problem.gather = plan.token;
  for (ImageProblem* product : {&up, &down}) {
    product->problem.tile_m = tile;
    product->problem.tiles = plan.tiles;
    product->problem.num_tiles = plan.num_tiles;
    product->problem.max_tiles = plan.max_tiles;
  }
  run_image_mma(device, up);
  experts_swiglu(device, {.gate_up = gate_up,
                          .weight = plan.weight,
                          .limit = args.swiglu_limit,
                          .quantize = true,
                          .hidden = hidden});
  run_image_mma(device, down);
  experts_combine(device, {.y = y,
                           .pair_of = plan.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

}  // namespace dsv4::experts_kernel::sm90_mma
