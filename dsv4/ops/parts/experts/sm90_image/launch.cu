// The implementation sm90_image of experts.h: rows of bf16 times kernel images of each matrix
// (gemm/sm90/image_rows.h). List of pairs, where there are more than 32, gate and up with the
// activation, down, combine; one launch each. h is bf16, y f32.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/image_rows.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/sm90_image/call.h"

namespace dsv4::experts_kernel::sm90_image {
namespace {

bool are_images_of(const WeightView& w, const WeightView& first) {
  return w.format == first.format && w.bits == first.bits && w.e4m3_codebook == first.e4m3_codebook;
}

// Returns nullptr, or why the kernel cannot read the images `member`.
const char* reject_images(const ExpertStack& stack, Member member) {
  const auto file = stack.file();
  if (const char* why = image_rows::reject_weight(file[0].*member)) return why;
  const ImagePlaces places = places_of(stack, member);
  for (size_t e = 0; e < file.size(); ++e) {
    const WeightView& w = file[e].*member;
    if (!are_images_of(w, file[0].*member)) return "experts differ in format or codebook";
    if (w.data.data != places.of(static_cast<int>(e))) return "experts at unequal distances";
  }
  return places.distance % 16 == 0 ? nullptr : "images are not 16-byte aligned";
}

bool have_one_scale(const ExpertStack& stack) {
  for (const ExpertWeights& e : stack.file())
    if (e.w1.scale2 != 1 || e.w3.scale2 != 1 || e.w2.scale2 != 1) return false;
  return true;
}

constexpr int kScaleThreads = 128;
__global__ void __launch_bounds__(kScaleThreads)
    scales_kernel(const __grid_constant__ Scale2s from, int experts, float* to) {
  const int e = static_cast<int>(blockIdx.x) * kScaleThreads + static_cast<int>(threadIdx.x);
  if (e >= experts) return;
  to[e * 3] = from.w1[e], to[e * 3 + 1] = from.w3[e], to[e * 3 + 2] = from.w2[e];
}

// [e, 3] in the workspace; null where all of them are 1. It does not start early, and kernels that
// read it wait for it.
const float* scales_of(Device& device, const ExpertStack& stack) {
  if (have_one_scale(stack)) return nullptr;
  const int64_t e = stack.size();
  auto* const to = device.workspace().take(DType::kF32, {e, 3}).as<float>();
  launch(device, "image_scales", scales_kernel,
         {.grid = ceil_div(e, int64_t{kScaleThreads}), .block = kScaleThreads}, scale2s_of(stack),
         static_cast<int>(e), to);
  return to;
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (args.stack.layout() != WeightLayout::kMatrixImages) return "for kernel images of each matrix";
  if (args.stack.empty()) return "no experts";
  if (args.experts.empty()) return "no expert ids";
  if (args.stack.size() > image_rows::kMaxImages) return "more than 512 experts";
  if (context.numerics != Numerics::kExact) return "official numerics";
  if (!args.may_round_operands) return "operands must not be rounded";
  if (const char* why = image_rows::reject_rows(*context.device, args.x)) return why;
  for (const Member member : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2})
    if (const char* why = reject_images(args.stack, member)) return why;
  const ExpertWeights& first = args.stack.file()[0];
  if (!are_images_of(first.w3, first.w1)) return "gate and up differ in format or codebook";
  return first.w2.k % 8 == 0 ? nullptr : "rows of h are not 16-byte aligned";
}

void run(const Context& context, const ExpertsArgs& args) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const float* const scales = scales_of(device, args.stack);
  const ImageCall call = make_image_call(args, device.info().num_sms, scales, scratch);
  if (call.needs_list()) image_rows::launch_list(device, call.choices, call.lists);
  image_rows::launch_gate_up(device, args.stack.file()[0].w1, call.gate_up);
  image_rows::launch_rows(device, args.stack.file()[0].w2, call.down);
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

}  // namespace dsv4::experts_kernel::sm90_image
