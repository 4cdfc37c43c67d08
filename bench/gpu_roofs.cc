#include "bench/gpu_roofs.h"

#include <algorithm>
#include <vector>

#include "dsv4/device/cublas_lt.h"
#include "dsv4/device/event.h"
#include "dsv4/device/graph.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::bench {
namespace {

constexpr double kGraphSeconds = 4e-3;
constexpr int kMaxCalls = 64, kReplays = 21;

double seconds(Device& device, const std::function<void()>& enqueue) {
  Event start, end;
  start.record(device.stream());
  enqueue();
  end.record(device.stream());
  end.wait();
  return end.seconds_since(start);
}

double matrix_flops_per_s(Device& device) {
  constexpr int64_t kSize = 8192;
  const LtShape shape{.t = kSize,
                      .n = kSize,
                      .k = kSize,
                      .x_stride = kSize,
                      .weight_stride = kSize,
                      .out_stride = kSize,
                      .out = DType::kBF16};
  if (lt_reject(device, shape) != nullptr) return 0;
  // Equal numbers draw less power than weights do: this roof is a high one.
  const Buffer x(DType::kBF16, {kSize, kSize}, device.memory());
  const Buffer weight(DType::kBF16, {kSize, kSize}, device.memory());
  const Buffer out(DType::kBF16, {kSize, kSize}, device.memory());
  for (const Buffer* operand : {&x, &weight}) {
    cuda_check(cudaMemsetAsync(operand->view().data, 0x3c,
                               static_cast<size_t>(operand->view().bytes()), device.stream()),
               "cudaMemset");
  }
  const LtPointers pointers{
      .x = x.view().data, .weight = weight.view().data, .out = out.view().data};
  const Timing timing = time_calls(device, [&] { lt_matmul(device, shape, pointers); });
  return 2.0 * kSize * kSize * kSize / timing.median_s;
}

double copy_bytes_per_s(Device& device) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Buffer from(DType::kU8, {kBytes}, device.memory());
  const Buffer to(DType::kU8, {kBytes}, device.memory());
  const Timing timing = time_calls(device, [&] {
    cuda_check(cudaMemcpyAsync(to.view().data, from.view().data, kBytes, cudaMemcpyDeviceToDevice,
                               device.stream()),
               "copy");
  });
  return 2.0 * kBytes / timing.median_s;
}

}  // namespace

Timing time_calls(Device& device, const std::function<void()>& call) {
  call();  // code is loaded, workspace allocated
  const double once = seconds(device, call);
  Timing timing{.calls = static_cast<int>(std::clamp(kGraphSeconds / once, 1.0, 1.0 * kMaxCalls)),
                .replays = kReplays};
  const Graph graph = Graph::capture(device, [&] {
    for (int i = 0; i < timing.calls; ++i) call();
  });
  graph.launch(device);
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i)
    times.push_back(seconds(device, [&] { graph.launch(device); }) / timing.calls);
  std::sort(times.begin(), times.end());
  timing.median_s = times[times.size() / 2];
  timing.fastest_s = times.front();
  return timing;
}

GpuRoofs measure_roofs(Device& device) {
  return {.copy_bytes_per_s = copy_bytes_per_s(device),
          .matrix_flops_per_s = matrix_flops_per_s(device)};
}

}  // namespace dsv4::bench
