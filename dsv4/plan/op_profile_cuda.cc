// The op profile of a device: an event before and after each call, read when all have passed.

#include <deque>

#include "dsv4/base/error.h"
#include "dsv4/device/device.h"
#include "dsv4/device/event.h"
#include "dsv4/plan/op_profile.h"
#include "dsv4/plan/step_cost.h"

namespace dsv4 {
namespace {

class DeviceProfile final : public OpProfile {
 public:
  explicit DeviceProfile(Device& device) : device_(device) {}

  void observe(const OpCall& call) override {
    if (call.impl().parts()) return call.run();
    Timed& timed = calls_.emplace_back();
    timed.name = fmt::format("{}/{}", call.op(), call.impl().name);
    timed.cost = floor_of(call);
    timed.begin.record(device_.stream());
    call.run();
    timed.end.record(device_.stream());
  }

  std::map<std::string, OpTotal> take() override {
    device_.wait();
    std::map<std::string, OpTotal> totals;
    for (const Timed& timed : calls_) {
      OpTotal& total = totals[timed.name];
      ++total.calls;
      total.seconds += timed.end.seconds_since(timed.begin);
      total.cost += timed.cost;
    }
    calls_.clear();
    return totals;
  }

 private:
  struct Timed {
    std::string name;
    Cost cost;
    Event begin, end;
  };

  Device& device_;
  std::deque<Timed> calls_;
};

}  // namespace

std::unique_ptr<OpProfile> make_device_op_profile(Device& device) {
  return std::make_unique<DeviceProfile>(device);
}

}  // namespace dsv4
