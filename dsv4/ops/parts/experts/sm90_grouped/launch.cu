// The implementations sm90_grouped, sm90_grouped_e4m3 and sm90_many_e4m3 of experts.h: lists, Q8
// rows in the order of the tiles, gate and up with SwiGLU and Q8, down, combine. The second has
// e4m3 operands where weights are MXFP4, and takes 12 to 25 % less time; the third has the bits of
// sm90_few_e4m3. And those of halves.h: what one of the two products needs of this.

#include "dsv4/ops/parts/experts/sm90_grouped/launch.cuh"

#include "dsv4/device/launch.cuh"
#include "dsv4/device/shared_gpu.h"
#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/sm90_grouped/call.cuh"

namespace dsv4::experts_kernel::sm90_grouped {
namespace few = gemm::experts_e4m3;  // whose sums those of kBlocks are
static_assert(grouped::kChunkGroups == few::kGroups);
namespace {

constexpr const char* kSharedGpu = "ranks share a GPU, and the kernel fills SMs";
// The largest limit of SwiGLU: h' has to have room in f16.
constexpr float kMostLimit = 64;

using Launch = void (*)(Device& device, const grouped::Params& p);
// By KbitImage::kind().
constexpr Launch kTwoByteProducts[] = {
    launch_products<2, kE4M4, kTwoBytes>,  launch_products<3, kE4M4, kTwoBytes>,
    launch_products<4, kE4M4, kTwoBytes>,  launch_products<5, kE4M4, kTwoBytes>,
    launch_products<4, kUe8m0, kTwoBytes>, launch_products<4, kE4M3, kTwoBytes>};
constexpr Launch kBlockProducts[] = {
    launch_products<2, kE4M4, kBlocks>,  launch_products<3, kE4M4, kBlocks>,
    launch_products<4, kE4M4, kBlocks>,  nullptr,
    launch_products<4, kUe8m0, kBlocks>, nullptr};
static_assert(std::size(kTwoByteProducts) == KbitImage::kKinds);
static_assert(std::size(kBlockProducts) == KbitImage::kKinds);
// Codebooks on the e4m3 grid, by K - 2.
constexpr Launch kOneByteProducts[] = {launch_products<2, kE4M4, kOneByte>,
                                       launch_products<3, kE4M4, kOneByte>,
                                       launch_products<4, kE4M4, kOneByte>};

Launch launch_of(const KbitImage& image, const Codebook& book, Operands operands) {
  if (operands == Operands::kBlocks) return kBlockProducts[image.kind()];
  if (form_of(image, operands) == grouped::XForm::kE4m3) return launch_products<4, kUe8m0, kFolded>;
  return gemm::scaled_table(book, image.scale) == gemm::ScaledTable::kE4m3
             ? kOneByteProducts[image.bits - kMinKbit]
             : kTwoByteProducts[image.kind()];
}

// rows: of x
void launch_rows(Device& device, const Call& call, int64_t rows) {
  launch(device, "experts_count", count_kernel,
         {.grid = call.lists.ctas, .block = kListThreads, .pdl = true}, call.choices, call.lists);
  launch(device, "experts_place", place_kernel,
         {.grid = call.lists.ctas, .block = kListThreads, .pdl = true}, call.choices, call.lists);
  if (!takes_groups(call.rows))
    return launch(device, "experts_rows", rows_kernel,
                  {.grid = rows, .block = kRowThreads, .pdl = true}, call.rows);
  launch(device, "experts_tile_rows", tile_rows_kernel,
         {.grid = call.most_tiles() * groups_of(call.rows), .block = kRowThreads, .pdl = true},
         call.rows, call.lists.end_of_tiles());
}

// Both products: in one launch, where one kernel takes both kinds of images.
void launch_both(Device& device, const ExpertImages& images, grouped::Params products,
                 Operands operands) {
  const Launch up = launch_of(images.gate_up, images.gate_up_codebook, operands);
  const Launch down = launch_of(images.down, images.down_codebook, operands);
  products.has_down = up == down;
  up(device, products);
  if (products.has_down) return;
  products.has_gate_up = false, products.has_down = true;
  down(device, products);
}

void run_with(const Context& context, const ExpertsArgs& args, Operands operands) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const Call call = make_call(args, operands, scratch);
  const ExpertImages& images = args.stack.images();
  launch_rows(device, call, args.x.dim(0));
  for (int turn = 0; turn < images.num_turns(); ++turn) {
    if (images.turns != nullptr) images.turns->begin(turn);
    launch_both(device, images, call.of_turn(turn), operands);
    if (images.turns != nullptr) images.turns->end(turn);
  }
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.slot_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

void run_with(const Context& context, const ExpertsHiddenArgs& args, Operands operands) {
  if (args.hidden.dim(0) == 0) return;
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const Call call = make_hidden_call(args, operands, device.workspace());
  const ExpertImages& images = args.stack.images();
  launch_rows(device, call, args.x.dim(0));
  launch_of(images.gate_up, images.gate_up_codebook, operands)(device, call.products);
}

void run_with(const Context& context, const ExpertsOutputArgs& args, Operands operands) {
  if (args.hidden.dim(0) == 0) return;
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const Call call = make_output_call(args, operands, device.workspace());
  const ExpertImages& images = args.stack.images();
  launch_rows(device, call, args.hidden.dim(0));
  launch_of(images.down, images.down_codebook, operands)(device, call.products);
  if (!args.rows.empty()) return;
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.slot_of,
                           .slots = args.experts.dim(1),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

const char* reject_columns(const ConstTensorView& x) {
  if (x.dtype != DType::kBF16) return "activations are not bf16";
  return x.dim(1) > kRowThreads * kVector * kRowVectors ? "rows of more than 8192 columns"
                                                        : nullptr;
}

// With more pairs of an expert on average, sm90_grouped is faster. For MXFP4 sm90_grouped_e4m3 is
// faster with any number of pairs.
constexpr int64_t kMostPairsInBlocks = 16;

// Why sm90_many_e4m3 refuses a product. It takes no call that the kernels with its bits for few
// pairs refuse: these want both codebooks on the e4m3 grid, and aligned rows of x of at most
// `columns`.
const char* reject_blocks(const Context& context, const ExpertImages& images,
                          const KbitImage& image, int64_t columns, const ConstTensorView& x,
                          int64_t pairs, int64_t experts) {
  if (image.scale == ImageScale::kE4M3) return "NVFP4, whose blocks have 16 columns";
  if (!gemm::fits_e4m3(images.gate_up_codebook) || !gemm::fits_e4m3(images.down_codebook))
    return "codebooks are not on the e4m3 grid";
  if (image.k > columns) return "rows of more columns than the kernels for few pairs take";
  if (x.row_stride() % kVector != 0 || reinterpret_cast<uintptr_t>(x.data) % 16 != 0)
    return "rows of activations are not aligned to 16 bytes";
  if (!context.force_impl.empty() || context.need_batch_invariant) return nullptr;
  if (image.is_fp4()) return "FP4, whose scales may be folded";
  return pairs > kMostPairsInBlocks * experts ? "many pairs for each expert" : nullptr;
}

const char* reject_half(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* why = reject_stack(context, args.stack, args.experts)) return why;
  const TensorView& h = args.hidden;
  if (h.dtype != DType::kBF16 || h.dim(1) % 4 != 0 || h.row_stride() % 4 != 0 ||
      reinterpret_cast<uintptr_t>(h.data) % 8 != 0)
    return "hidden values that are not bf16 in aligned fours";
  return reject_columns(args.x);
}

const char* reject_half(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* why = reject_stack(context, args.stack, args.experts)) return why;
  const TensorView& y = args.rows;
  if (!y.empty() && (y.dtype != DType::kBF16 || y.dim(1) % 8 != 0 || y.row_stride() % 8 != 0 ||
                     reinterpret_cast<uintptr_t>(y.data) % 16 != 0))
    return "rows that are not bf16 in aligned eights";
  return reject_columns(args.hidden);
}

// Why the operands of this product cannot be e4m3.
const char* reject_folded(const ExpertImages& images, const KbitImage& image) {
  if (image.scale != ImageScale::kUe8m0) return "for MXFP4";
  if (images.exponents.empty())
    return "a block of a matrix is more than 11 below its largest exponent, or NaN";
  return image.units_along_k() % grouped::kUnitsAtOnce == 0 ? nullptr
                                                            : "an odd number of 256 columns";
}

// What all three refuse.
const char* reject_call(const Context& context, const ExpertsArgs& args) {
  if (gpus_are_shared()) return kSharedGpu;
  if (!args.stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (args.experts.empty()) return "for routed experts";
  if (args.stack.size() > kMaxExperts) return "more than 384 experts";
  if (const char* reason = reject_other_models(args)) return reason;
  if (args.x.dtype != DType::kBF16) return "x is not bf16";
  return args.x.dim(1) > kRowThreads * kVector * kRowVectors ? "rows of more than 8192 columns"
                                                             : nullptr;
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* reason = reject_call(context, args)) return reason;
  const bool bounded = args.swiglu_limit > 0 && args.swiglu_limit <= kMostLimit;
  if (!bounded && !args.stack.images().down.is_fp4())
    return "k-bit weights, and no clamp of SwiGLU or one above 64";
  return nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  run_with(context, args, Operands::kScaled);
}

}  // namespace dsv4::experts_kernel::sm90_grouped

namespace dsv4::experts_kernel::sm90_many_e4m3 {

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* reason = sm90_grouped::reject_call(context, args)) return reason;
  using sm90_grouped::reject_blocks;
  const ExpertImages& images = args.stack.images();
  const int64_t pairs = args.x.dim(0) * slots(args), experts = args.stack.size();
  if (const char* why = reject_blocks(context, images, images.gate_up,
                                      gemm::experts_e4m3::kWideColumns, args.x, pairs, experts))
    return why;
  // x is checked again in place of h, whose rows are always aligned.
  return reject_blocks(context, images, images.down, gemm::experts_e4m3::kMaxColumns, args.x, pairs,
                       experts);
}

void run(const Context& context, const ExpertsArgs& args) {
  sm90_grouped::run_with(context, args, sm90_grouped::Operands::kBlocks);
}

}  // namespace dsv4::experts_kernel::sm90_many_e4m3

namespace dsv4::experts_kernel::sm90_grouped_e4m3 {

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* reason = sm90_grouped::reject(context, args)) return reason;
  const ExpertImages& images = args.stack.images();
  if (!may_fold(images)) return "for MXFP4";
  if (images.exponents.empty())
    return "a block of a matrix is more than 11 below its largest exponent, or NaN";
  for (const KbitImage* image : {&images.gate_up, &images.down})
    if (image->scale == ImageScale::kUe8m0 &&
        image->units_along_k() % gemm::grouped::kUnitsAtOnce != 0)
      return "an odd number of 256 columns";
  return nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  sm90_grouped::run_with(context, args, sm90_grouped::Operands::kFolded);
}

}  // namespace dsv4::experts_kernel::sm90_grouped_e4m3

namespace dsv4 {
namespace {

namespace few = gemm::experts_e4m3;
using experts_kernel::sm90_grouped::Operands, experts_kernel::sm90_grouped::run_with;
using experts_kernel::sm90_grouped::reject_folded, experts_kernel::sm90_grouped::reject_half,
    experts_kernel::sm90_grouped::reject_blocks;

}  // namespace

namespace experts_hidden_kernel::sm90_grouped {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  return reject_half(context, args);
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  run_with(context, args, Operands::kScaled);
}

}  // namespace experts_hidden_kernel::sm90_grouped

namespace experts_hidden_kernel::sm90_many_e4m3 {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  const ExpertImages& images = args.stack.images();
  return reject_blocks(context, images, images.gate_up, few::kWideColumns, args.x,
                       args.hidden.dim(0), args.stack.num_ids());
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  run_with(context, args, Operands::kBlocks);
}

}  // namespace experts_hidden_kernel::sm90_many_e4m3

namespace experts_hidden_kernel::sm90_grouped_e4m3 {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  return reject_folded(args.stack.images(), args.stack.images().gate_up);
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  run_with(context, args, Operands::kFolded);
}

}  // namespace experts_hidden_kernel::sm90_grouped_e4m3

namespace experts_output_kernel::sm90_grouped {

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  return reject_half(context, args);
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  run_with(context, args, Operands::kScaled);
}

}  // namespace experts_output_kernel::sm90_grouped

namespace experts_output_kernel::sm90_many_e4m3 {

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  const ExpertImages& images = args.stack.images();
  return reject_blocks(context, images, images.down, few::kMaxColumns, args.hidden,
                       args.hidden.dim(0), args.stack.num_ids());
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  run_with(context, args, Operands::kBlocks);
}

}  // namespace experts_output_kernel::sm90_many_e4m3

namespace experts_output_kernel::sm90_grouped_e4m3 {

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  return reject_folded(args.stack.images(), args.stack.images().down);
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  run_with(context, args, Operands::kFolded);
}

}  // namespace experts_output_kernel::sm90_grouped_e4m3
}  // namespace dsv4
