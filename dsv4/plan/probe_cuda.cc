#include <algorithm>
#include <vector>

#include "dsv4/device/activity_trace.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/event.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/plan/probe.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int kRounds = 21;

template <class Enqueue>
double median_seconds(Device& device, const Enqueue& enqueue) {
  enqueue();
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    Event begin, end;
    begin.record(device.stream());
    enqueue();
    end.record(device.stream());
    end.wait();
    seconds.push_back(end.seconds_since(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

double copy_bandwidth(Device& device) {
  const int64_t bytes = std::min(int64_t{1} << 30, device.free_bytes() / 4);
  const Buffer from(DType::kU8, {bytes}, device.memory()), to(DType::kU8, {bytes}, device.memory());
  const double seconds = median_seconds(device, [&] {
    cuda_check(cudaMemcpyAsync(to.view().data, from.view().data, static_cast<size_t>(bytes),
                               cudaMemcpyDeviceToDevice, device.stream()),
               "copy on the GPU");
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

// Bit patterns of moderate bf16 numbers of both signs: products of zeros run faster than real ones.
void fill_moderate(Device& device, const Buffer& buffer) {
  std::vector<uint16_t> values(static_cast<size_t>(buffer.view().numel()));
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>(0x3e00u | (state >> 16 & 0x81ffu));
  }
  device.memory().upload(buffer.view().data, reinterpret_cast<const std::byte*>(values.data()),
                         buffer.view().bytes());
}

double matrix_rate(Device& device) {
  constexpr int64_t n = 8192;
  const Buffer x(DType::kBF16, {n, n}, device.memory()), w(DType::kBF16, {n, n}, device.memory()),
      out(DType::kBF16, {n, n}, device.memory());
  fill_moderate(device, x);
  fill_moderate(device, w);
  const Context context{.device = &device};
  const double seconds = median_seconds(device, [&] {
    linear(
        context,
        {.x = x, .weight = {.format = WeightFormat::kBF16, .n = n, .k = n, .data = w}, .out = out});
  });
  return 2.0 * n * n * n / seconds;
}

class DeviceProbe : public Probe {
 public:
  explicit DeviceProbe(Device& device) : device_(device) {}

  std::string name() const override { return device_.info().name; }
  std::string driver() const override { return driver_version(); }
  int64_t total_bytes() const override { return device_.info().total_bytes; }
  int64_t free_bytes() const override { return device_.free_bytes(); }
  Roofs measure_roofs() override {
    return {.copy_bytes_per_s = copy_bandwidth(device_),
            .matrix_flops_per_s = matrix_rate(device_)};
  }
  void time_kernels(bool on) override { device_.time_kernels(on); }
  std::map<std::string, KernelTotal> take_times() override {
    device_.wait();
    std::map<std::string, KernelTotal> totals;
    if (device_.times() == nullptr) return totals;
    for (const auto& [name, total] : device_.times()->take())
      totals[name] = {total.launches, total.seconds};
    return totals;
  }
  Memory& memory() override { return device_.memory(); }
  void start_trace() override {
    device_.wait();
    dsv4::start_trace();
  }
  std::vector<KernelRun> stop_trace() override {
    device_.wait();
    std::vector<KernelRun> runs;
    for (const KernelSpan& span : dsv4::stop_trace())
      runs.push_back({span.name, 1e-3 * static_cast<double>(span.start_ns),
                      1e-3 * static_cast<double>(span.end_ns - span.start_ns), span.ctas});
    return runs;
  }

 private:
  Device& device_;
};

}  // namespace

std::unique_ptr<Probe> make_device_probe(Device& device) {
  return std::make_unique<DeviceProbe>(device);
}

}  // namespace dsv4
