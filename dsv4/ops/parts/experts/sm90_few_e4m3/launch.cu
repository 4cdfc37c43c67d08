// The implementations sm90_few_e4m3 and sm90_wide of experts.h: other instances of gate and
// up.

#include "dsv4/ops/parts/experts/experts_impls.h"
#include "dsv4/ops/parts/experts/sm90_few/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/instances.h"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/reader.cuh"

namespace dsv4 {
namespace experts_few_e4m3 {
namespace {

bool takes_codebooks(const ExpertImages& images) {
  return fits_e4m3(images.gate_up_codebook) && fits_e4m3(images.down_codebook);
}

// Of both implementations, whatever the columns are.
const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = experts_few::reject(context, args)) return reason;
  if (!takes_codebooks(args.stack.images())) return "codebooks are not on the e4m3 grid";
  if (args.x.row_stride() % 8 != 0 || reinterpret_cast<uintptr_t>(args.x.data) % 16 != 0)
    return "rows of x are not aligned to 16 bytes";
  return nullptr;
}

template <int kColumns>
void run(const Context& context, const ExpertsArgs& args) {
  experts_few::run(context, args,
                   {.reader = kReader,
                    .gate_up = {launch_gate_up<2, kColumns>, launch_gate_up<3, kColumns>,
                                launch_gate_up<4, kColumns>},
                    .down = {launch_down<2>, launch_down<3>, launch_down<4>}});
}

}  // namespace
}  // namespace experts_few_e4m3

const char* experts_sm90_few_e4m3_reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = experts_few_e4m3::reject(context, args)) return reason;
  return sm90_few_takes(args.stack.images()) ? nullptr : experts_few::kTooWide;
}

void experts_sm90_few_e4m3(const Context& context, const ExpertsArgs& args) {
  experts_few_e4m3::run<experts_few_e4m3::kMaxColumns>(context, args);
}

bool sm90_wide_takes(const ExpertImages& images) {
  using namespace experts_few_e4m3;
  return takes_codebooks(images) && images.gate_up.k <= kWideColumns &&
         images.down.k <= kMaxColumns;
}

const char* experts_sm90_wide_reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = experts_few_e4m3::reject(context, args)) return reason;
  return sm90_wide_takes(args.stack.images()) ? nullptr
                                              : "rows of more than 7168 columns, or 4096 in down";
}

void experts_sm90_wide(const Context& context, const ExpertsArgs& args) {
  experts_few_e4m3::run<experts_few_e4m3::kWideColumns>(context, args);
}

}  // namespace dsv4
