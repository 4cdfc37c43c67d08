// The implementations sm90_few_e4m3 and sm90_wide of experts.h. sm90_wide has its kernels in this
// folder: instances of gate and up with room for more columns.

#include "dsv4/ops/parts/experts/sm90_few_e4m3/launch.cuh"

#include "dsv4/ops/parts/experts/sm90_few/launch.cuh"

namespace dsv4::experts_kernel {
namespace sm90_few_e4m3 {
namespace {

bool takes_codebooks(const ExpertImages& images) {
  return gemm::fits_e4m3(images.gate_up_codebook) && gemm::fits_e4m3(images.down_codebook);
}

// What both implementations refuse, whatever the columns are.
const char* reject_call(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = sm90_few::reject_call(context, args)) return reason;
  if (!takes_codebooks(args.stack.images())) return "codebooks are not on the e4m3 grid";
  if (args.x.row_stride() % 8 != 0 || reinterpret_cast<uintptr_t>(args.x.data) % 16 != 0)
    return "rows of x are not aligned to 16 bytes";
  return nullptr;
}

// kGateUp, kColumns: of an instance, by KbitImage::kind(); there is none of K = 5
template <bool kGateUp, int kColumns>
constexpr sm90_few::Launches kLaunches{launch_product<2, ImageScale::kE4M4, kGateUp, kColumns>,
                                       launch_product<3, ImageScale::kE4M4, kGateUp, kColumns>,
                                       launch_product<4, ImageScale::kE4M4, kGateUp, kColumns>,
                                       nullptr,
                                       launch_product<4, ImageScale::kUe8m0, kGateUp, kColumns>,
                                       launch_product<4, ImageScale::kE4M3, kGateUp, kColumns>};

template <int kColumns>
constexpr sm90_few::Kernels kKernels{.reader = kReader,
                                     .gate_up = kLaunches<true, kColumns>,
                                     .down = kLaunches<false, kMaxColumns>,
                                     .gate_up_waits_first = true};

template <int kColumns>
void run_kernels(const Context& context, const ExpertsArgs& args) {
  sm90_few::run_kernels(context, args, kKernels<kColumns>);
}

// What a half refuses, whatever the columns are.
template <class Args>
const char* reject_half(const Context& context, const Args& args) {
  if (const char* const why = sm90_few::reject_half(context, args)) return why;
  return takes_codebooks(args.stack.images()) ? nullptr : "codebooks are not on the e4m3 grid";
}

constexpr const char* kTooWide = "rows of more than 4096 columns";

const char* reject_hidden(const Context& context, const ExpertsHiddenArgs& args, int64_t columns,
                          const char* too_wide) {
  if (const char* const why = reject_half(context, args)) return why;
  if (args.x.row_stride() % 8 != 0 || reinterpret_cast<uintptr_t>(args.x.data) % 16 != 0)
    return "rows of x are not aligned to 16 bytes";
  return args.stack.images().gate_up.k <= columns ? nullptr : too_wide;
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = reject_call(context, args)) return reason;
  const ExpertImages& images = args.stack.images();
  return std::max(images.gate_up.k, images.down.k) <= kMaxColumns
             ? nullptr
             : "rows of more than 4096 columns";
}

void run(const Context& context, const ExpertsArgs& args) {
  run_kernels<kMaxColumns>(context, args);
}

}  // namespace sm90_few_e4m3

namespace sm90_wide {

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = sm90_few_e4m3::reject_call(context, args)) return reason;
  return sm90_wide_takes(args.stack.images()) ? nullptr
                                              : "rows of more than 7168 columns, or 4096 in down";
}

void run(const Context& context, const ExpertsArgs& args) {
  sm90_few_e4m3::run_kernels<sm90_few_e4m3::kWideColumns>(context, args);
}

}  // namespace sm90_wide
}  // namespace dsv4::experts_kernel

namespace dsv4 {

bool sm90_wide_takes(const ExpertImages& images) {
  using namespace experts_kernel::sm90_few_e4m3;
  return takes_codebooks(images) && images.gate_up.k <= kWideColumns &&
         images.down.k <= kMaxColumns;
}

const char* reject_experts_e4m3(const Context& context, const ExpertsArgs& args) {
  return experts_kernel::sm90_few_e4m3::reject(context, args);
}

}  // namespace dsv4

namespace dsv4::experts_hidden_kernel {

using namespace experts_kernel::sm90_few_e4m3;

namespace sm90_few_e4m3 {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  return reject_hidden(context, args, kMaxColumns, kTooWide);
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  experts_kernel::sm90_few::run_hidden(context, args, kKernels<kMaxColumns>);
}

}  // namespace sm90_few_e4m3

namespace sm90_wide {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  return reject_hidden(context, args, kWideColumns, "rows of more than 7168 columns");
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  experts_kernel::sm90_few::run_hidden(context, args, kKernels<kWideColumns>);
}

}  // namespace sm90_wide
}  // namespace dsv4::experts_hidden_kernel

namespace dsv4::experts_output_kernel::sm90_few_e4m3 {

using namespace experts_kernel::sm90_few_e4m3;

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* const why = reject_half(context, args)) return why;
  if (args.hidden.row_stride() % 8 != 0 || reinterpret_cast<uintptr_t>(args.hidden.data) % 16 != 0)
    return "rows of hidden values are not aligned to 16 bytes";
  return args.stack.images().down.k <= kMaxColumns ? nullptr : kTooWide;
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  experts_kernel::sm90_few::run_output(context, args, kKernels<kMaxColumns>);
}

}  // namespace dsv4::experts_output_kernel::sm90_few_e4m3
