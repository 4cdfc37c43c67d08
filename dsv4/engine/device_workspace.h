// Memory of a step on a device beside weights and cache, known before there is a device.

#pragma once

#include "dsv4/engine/cache_plan.h"

namespace dsv4 {

struct DeviceWorkspace {
  int64_t lists = 0;  // make_step()'s, on the device; as much again is page-locked on the host
  int64_t activations = 0;  // Model::forward()'s
  int64_t logits = 0;       // [rows, V] f32
  int64_t kernels = 0;      // what the rows take inside a call, at most
  int64_t total() const { return lists + activations + logits + kernels; }
};

DeviceWorkspace plan_device_workspace(const ModelConfig& config, Numerics numerics,
                                      const CacheLimits& limits);

// Lists of the largest step, decode steps padded to the sizes that are captured included.
int64_t device_list_bytes(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

}  // namespace dsv4
