#include "dsv4/plan/op_profile.h"

#include <chrono>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/plan/step_cost.h"

namespace dsv4 {
namespace {

class HostProfile final : public OpProfile {
 public:
  void observe(const OpCall& call) override {
    if (call.impl().parts()) return call.run();
    const auto begin = std::chrono::steady_clock::now();
    call.run();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    OpTotal& total = totals_[fmt::format("{}/{}", call.op(), call.impl().name)];
    ++total.calls;
    total.seconds += spent.count();
    total.cost += floor_of(call);
  }
  std::map<std::string, OpTotal> take() override { return std::exchange(totals_, {}); }

 private:
  std::map<std::string, OpTotal> totals_;
};

}  // namespace

std::unique_ptr<OpProfile> make_op_profile(Device* device) {
#if DSV4_CUDA
  if (device != nullptr) return make_device_op_profile(*device);
#endif
  (void)device;  // null in a build without CUDA
  return std::make_unique<HostProfile>();
}

}  // namespace dsv4
