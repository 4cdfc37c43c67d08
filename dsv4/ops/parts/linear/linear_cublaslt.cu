// The implementations cublaslt, cublaslt_fp8, cublaslt_dequantized and cublaslt_any of linear.h:
// one cuBLASLt matmul per group. cuBLASLt takes f32 scales, so a kernel writes them to the
// workspace in the layout that it requires; with bf16 and f16 activations it takes no FP8 and no
// k-bit weight, so the weight is written there in their type.

#include "dsv4/base/bits.h"
#include "dsv4/device/cublas_lt.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel {
namespace {

constexpr int64_t kMinTokens = 16;  // with fewer, reading the weight once bounds the time
// With fewer tokens, writing the weight costs too much: of FP8 blocks, and of other formats.
constexpr int64_t kDequantizeFp8Tokens = 96, kDequantizeTokens = 256;
constexpr int64_t kFp8Tokens = 4;  // cuBLASLt takes multiples of this many tokens with FP8
constexpr int kThreads = 256;

bool aligned(const ConstTensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % kLtAlignment == 0 &&
         view.row_stride() * item_bytes(view.dtype) % kLtAlignment == 0;
}

// The groups of the op: the blocks of a block-diagonal weight.
int64_t num_groups(const LinearArgs& args) {
  return args.weight.k == 0 ? 1 : args.x.dim(1) / args.weight.k;
}

// The matmul of one group.
LtShape shape_of(const LinearArgs& args) {
  return {.t = args.x.dim(0),
          .n = args.weight.n / num_groups(args),
          .k = args.weight.k,
          .x_stride = args.x.row_stride(),
          .weight_stride = args.weight.data.row_stride(),
          .out_stride = args.out.row_stride(),
          .operands = args.x.dtype,
          .out = args.out.dtype};
}

const char* reject_shape(const Context& context, const LinearArgs& args) {
  const int64_t unit = kLtAlignment / item_bytes(args.x.dtype);
  if (context.numerics == Numerics::kExact) return "sums of tensor cores are not exact f32";
  if (const char* why = reject_quantize(args)) return why;
  if (args.x.dim(0) < kMinTokens) return "for 16 tokens or more";
  if (args.weight.n == 0 || args.weight.k == 0) return "for weights that are not empty";
  if (!aligned(args.x) || !aligned(args.weight.data) || !aligned(args.out) ||
      args.weight.k % unit != 0 || args.weight.n / num_groups(args) % unit != 0)
    return "tensors must be aligned to 16 bytes";
  return lt_reject(*context.device, shape_of(args));
}

LtPointers pointers_of(const LinearArgs& args, const LtShape& shape, int64_t group) {
  return {.x = args.x.data + group * shape.k * item_bytes(args.x.dtype),
          .weight = args.weight.data.data +
                    group * shape.n * shape.weight_stride * item_bytes(args.x.dtype),
          .out = args.out.data + group * shape.n * item_bytes(args.out.dtype)};
}

// The call with the weight in `dtype`, BF16 or F16, at `values`.
LinearArgs with_float_weight(const LinearArgs& args, DType dtype, std::byte* values) {
  LinearArgs widened = args;
  const WeightView& w = args.weight;
  widened.weight = {.format = dtype == DType::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF16,
                    .n = w.n,
                    .k = w.k,
                    .data = TensorView(TensorMeta::contiguous(dtype, {w.n, w.k}), values)};
  return widened;
}

// Writes the weight to the workspace in the dtype of x, and multiplies.
void run_dequantized(const Context& context, const LinearArgs& args) {
  Scratch& workspace = context.device->workspace();
  const Scratch::Scope scope(workspace);
  const TensorView values = workspace.take(args.x.dtype, {args.weight.n, args.weight.k});
  impl_of(dequantize, "cuda").run(context, {.weight = args.weight, .out = values});
  const LinearArgs widened = with_float_weight(args, args.x.dtype, values.data);
  const LtShape shape = shape_of(widened);
  const LaunchMark mark(*context.device, "linear_cublaslt");
  for (int64_t g = 0; g < num_groups(widened); ++g)
    lt_matmul(*context.device, shape, pointers_of(widened, shape, g));
}

// Scales as stored, [rows, blocks] E8M0 or F32.
struct Scales {
  const void* data;
  int64_t stride;
  bool f32;

  explicit Scales(const ConstTensorView& view)
      : data(view.data), stride(view.row_stride()), f32(view.dtype == DType::kF32) {}
  __device__ float at(int64_t row, int64_t block) const {
    const int64_t i = row * stride + block;
    return f32 ? static_cast<const float*>(data)[i]
               : ue8m0_to_f32(static_cast<const uint8_t*>(data)[i]);
  }
};

// x_out: [x_blocks, t]; weight_out: [rows, weight_stride], each row padded with zeros. x_blocks
// counts the blocks of all groups, weight_blocks those of one group.
__global__ void widen_scales_kernel(Scales x, int64_t t, int64_t x_blocks, float* x_out,
                                    Scales weight, int64_t rows, int64_t weight_blocks,
                                    int64_t weight_stride, float* weight_out) {
  ptx::pdl_start();
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < t * x_blocks) {
    x_out[i] = x.at(i % t, i / t);
    return;
  }
  i -= t * x_blocks;
  if (i >= rows * weight_stride) return;
  const int64_t block = i % weight_stride;
  weight_out[i] = block < weight_blocks ? weight.at(i / weight_stride, block) : 0.f;
}

}  // namespace

namespace cublaslt {

const char* reject(const Context& context, const LinearArgs& args) {
  if (args.weight.format != WeightFormat::kBF16 || args.x.dtype != DType::kBF16)
    return "for bf16 activations and weights";
  if (const char* why = reject_f16(args)) return why;
  return reject_shape(context, args);
}

void run(const Context& context, const LinearArgs& args) {
  const LtShape shape = shape_of(args);
  const LaunchMark mark(*context.device, "linear_cublaslt");
  for (int64_t g = 0; g < num_groups(args); ++g)
    lt_matmul(*context.device, shape, pointers_of(args, shape, g));
}

}  // namespace cublaslt

namespace cublaslt_dequantized {

const char* reject(const Context& context, const LinearArgs& args) {
  if (args.weight.format != WeightFormat::kFp8Block || args.weight.scale.dtype != DType::kE8M0 ||
      args.x.dtype != DType::kBF16)
    return "for bf16 activations and fp8 weights with UE8M0 scales";
  if (args.x.dim(0) < kDequantizeFp8Tokens) return "for 96 tokens or more";
  if (const char* why = reject_f16(args)) return why;
  return reject_shape(context, with_float_weight(args, DType::kBF16, nullptr));
}

void run(const Context& context, const LinearArgs& args) {
  run_dequantized(context, args);
}

}  // namespace cublaslt_dequantized

namespace cublaslt_any {

const char* reject(const Context& context, const LinearArgs& args) {
  const DType x = args.x.dtype;
  if (x != DType::kBF16 && x != DType::kF16) return "for bf16 and f16 activations";
  if (args.weight.format != WeightFormat::kKbit) return "for k-bit weights";
  if (args.out.dtype != x && args.out.dtype != DType::kF32) return "out is not of the type of x";
  if (args.x.dim(0) < kDequantizeTokens) return "for 256 tokens or more";
  return reject_shape(context, with_float_weight(args, x, nullptr));
}

double rounding(const LinearArgs& args) {
  return args.x.dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

void run(const Context& context, const LinearArgs& args) {
  run_dequantized(context, args);
}

}  // namespace cublaslt_any

namespace cublaslt_fp8 {

const char* reject(const Context& context, const LinearArgs& args) {
  if (args.weight.format != WeightFormat::kFp8Block || args.x.dtype != DType::kE4M3)
    return "for fp8 activations and weights";
  if (context.device->info().major != 9) return "block scales of 128 are Hopper's";
  if (args.weight.k % kLtScaleBlock != 0 || args.weight.n / num_groups(args) % kLtScaleBlock != 0)
    return "n and k must be multiples of 128";
  if (args.x.dim(0) % kFp8Tokens != 0) return "tokens must be a multiple of 4";
  return reject_shape(context, args);
}

void run(const Context& context, const LinearArgs& args) {
  Device& device = *context.device;
  const LtShape shape = shape_of(args);
  const int64_t blocks = shape.k / kLtScaleBlock, groups = num_groups(args);
  const int64_t rows = args.weight.n / kLtScaleBlock, stride = lt_weight_scale_stride(shape.k);
  const Scratch::Scope scope(device.workspace());
  const TensorView x_scale = device.workspace().take(DType::kF32, {groups * blocks, shape.t});
  const TensorView weight_scale = device.workspace().take(DType::kF32, {rows, stride});
  launch(device, "widen_scales", widen_scales_kernel,
         {.grid = ceil_div(x_scale.numel() + weight_scale.numel(), kThreads),
          .block = kThreads,
          .pdl = true},
         Scales(args.x_scale), shape.t, groups * blocks, x_scale.as<float>(),
         Scales(args.weight.scale), rows, blocks, stride, weight_scale.as<float>());
  const LaunchMark mark(device, "linear_cublaslt_fp8");
  for (int64_t g = 0; g < groups; ++g) {
    LtPointers pointers = pointers_of(args, shape, g);
    pointers.x_scale = x_scale.row<float>(g * blocks);
    pointers.weight_scale = weight_scale.row<float>(g * (shape.n / kLtScaleBlock));
    lt_matmul(device, shape, pointers);
  }
}

}  // namespace cublaslt_fp8

}  // namespace dsv4::linear_kernel
