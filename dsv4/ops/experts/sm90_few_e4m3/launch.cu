// The implementation sm90_few_e4m3 of experts.h.

#include "dsv4/ops/experts/experts_impls.h"
#include "dsv4/ops/experts/sm90_few/launch.cuh"
#include "dsv4/ops/experts/sm90_few_e4m3/instances.h"
#include "dsv4/ops/experts/sm90_few_e4m3/reader.cuh"

namespace dsv4 {

const char* experts_sm90_few_e4m3_reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = experts_few::reject(context, args)) return reason;
  const ExpertImages& images = args.stack.images();
  if (!experts_few_e4m3::fits_e4m3(images.gate_up_codebook) ||
      !experts_few_e4m3::fits_e4m3(images.down_codebook))
    return "codebooks are not on the e4m3 grid";
  if (args.x.row_stride() % 8 != 0 || reinterpret_cast<uintptr_t>(args.x.data) % 16 != 0)
    return "rows of x are not aligned to 16 bytes";
  return nullptr;
}

void experts_sm90_few_e4m3(const Context& context, const ExpertsArgs& args) {
  using namespace experts_few_e4m3;
  experts_few::run(context, args,
                   {.reader = kReader,
                    .gate_up = {launch_gate_up<2>, launch_gate_up<3>, launch_gate_up<4>},
                    .down = {launch_down<2>, launch_down<3>, launch_down<4>}});
}

}  // namespace dsv4
