// The launch of a product, for the instances of sm90_few and sm90_few_e4m3.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few/config.cuh"

namespace dsv4::experts_few {

// One CTA for each SM.
template <class Shared>
void launch_product(Device& device, const char* name, void (*kernel)(Params), int threads,
                    const Params& p) {
  launch(device, name, kernel,
         {.grid = device.info().num_sms, .block = threads, .shared = sizeof(Shared), .pdl = true},
         p);
}

}  // namespace dsv4::experts_few
