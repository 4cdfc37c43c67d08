// Time of each op in the steps of a runner: an observer that runs every call between two time
// stamps. Steps take longer than without it: no graph is used, and on a device each call ends
// before the next one starts. An op that is made of calls of others (ImplInfo::parts) does not
// count; the calls inside it do. Time and cost of a call that another implementation makes are
// counted there alone.

#pragma once

#include <map>
#include <memory>
#include <string>

#include "dsv4/ops/op.h"

namespace dsv4 {

struct OpTotal {
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;  // of all calls; experts as expected (ops/parts/experts/experts.h)
};

class OpProfile : public Observer {
 public:
  // By op and implementation, "linear/cuda_mma", since the last call. Waits for what has started.
  virtual std::map<std::string, OpTotal> take() = 0;
};

// Null: the host.
std::unique_ptr<OpProfile> make_op_profile(Device* device);
std::unique_ptr<OpProfile> make_device_op_profile(Device& device);  // CUDA builds

}  // namespace dsv4
