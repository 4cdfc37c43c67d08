#include "dsv4/ops/model/sample/launch.cuh"
#include "dsv4/ops/model/sample/sample.h"

namespace dsv4::sample_kernel::cuda {

void run(const Context& context, const SampleArgs& args) {
  launch_sample<1>(context, args);
}

}  // namespace dsv4::sample_kernel::cuda
