// The op profile of a device: an event before and after each call, read when all have passed.

#include <deque>
#include <utility>

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
    timed.outer = std::exchange(running_, &timed);
    timed.name = fmt::format("{}/{}", call.op(), call.impl().name);
    timed.cost = floor_of(call);
    timed.begin.record(device_.stream());
    call.run();
    timed.end.record(device_.stream());
    running_ = timed.outer;
  }

  std::map<std::string, OpTotal> take() override {
    device_.wait();
    std::map<std::string, OpTotal> totals;
    for (const Timed& timed : calls_) {
      const double seconds = timed.end.seconds_since(timed.begin);
      OpTotal& total = totals[timed.name];
      ++total.calls;
      total.seconds += seconds;
      total.cost += timed.cost;
      if (timed.outer == nullptr) continue;
      OpTotal& outer = totals[timed.outer->name];
      outer.seconds -= seconds;
      outer.cost.bytes -= timed.cost.bytes;
      outer.cost.flops -= timed.cost.flops;
      outer.cost.weight_bytes -= timed.cost.weight_bytes;
      outer.cost.cache_bytes -= timed.cost.cache_bytes;
    }
    calls_.clear();
    return totals;
  }

 private:
  struct Timed {
    const Timed* outer = nullptr;  // the call inside which this one was made
    std::string name;
    Cost cost;
    Event begin, end;
  };

  Device& device_;
  std::deque<Timed> calls_;
  const Timed* running_ = nullptr;
};

}  // namespace

std::unique_ptr<OpProfile> make_device_op_profile(Device& device) {
  return std::make_unique<DeviceProfile>(device);
}

}  // namespace dsv4
