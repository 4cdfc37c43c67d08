#include "dsv4/ops/model/sample/launch.cuh"
#include "dsv4/ops/model/sample/sample_impls.h"

namespace dsv4 {

void sample_cuda(const Context& context, const SampleArgs& args) {
  sampling::launch_sample<1>(context, args);
}

}  // namespace dsv4
