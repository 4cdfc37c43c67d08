#include "dsv4/plan/probe.h"

#include "dsv4/base/error.h"
#include "dsv4/plan/machine.h"
#include "dsv4/tensor/memory.h"

namespace dsv4 {
namespace {

class HostProbe : public Probe {
 public:
  std::string name() const override { return "cpu"; }
  std::string driver() const override { return ""; }
  int64_t total_bytes() const override { return parse_machine("cpu").device_bytes; }
  int64_t free_bytes() const override { return total_bytes(); }
  Roofs measure_roofs() override { return {}; }
  void time_kernels(bool) override {}
  std::map<std::string, KernelTotal> take_times() override { return {}; }
  Memory& memory() override { return host_memory(); }
  void start_trace() override {
    fail(ErrorCode::kUnsupported, "no trace: there are no kernels on the {}", "host");
  }
  std::vector<KernelRun> stop_trace() override { return {}; }
};

}  // namespace

std::unique_ptr<Probe> make_probe(Device* device) {
#if DSV4_CUDA
  if (device != nullptr) return make_device_probe(*device);
#endif
  (void)device;  // null in a build without CUDA
  return std::make_unique<HostProbe>();
}

}  // namespace dsv4
