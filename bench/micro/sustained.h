// A second of one kernel: rate, SM clock, power. NVML is loaded by name, so that the program starts
// without it; the clock is also cycles over nanoseconds of the last launch.

#pragma once

#include <dlfcn.h>

#include <chrono>
#include <thread>

#include "bench/micro/micro.h"

namespace dsv4::micro {

class Nvml {
 public:
  Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library_ == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlInit_v2"));
    const auto handle = reinterpret_cast<int (*)(unsigned, void**)>(
        dlsym(library_, "nvmlDeviceGetHandleByIndex_v2"));
    power_ =
        reinterpret_cast<int (*)(void*, unsigned*)>(dlsym(library_, "nvmlDeviceGetPowerUsage"));
    clock_ =
        reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(library_, "nvmlDeviceGetClockInfo"));
    good_ = init != nullptr && handle != nullptr && power_ != nullptr && clock_ != nullptr &&
            init() == 0 && handle(0, &device_) == 0;
  }
  double watts() const {
    unsigned milliwatts = 0;
    return good_ && power_(device_, &milliwatts) == 0 ? milliwatts * 1e-3 : -1;
  }
  double sm_mhz() const {
    constexpr int kSmClock = 1;
    unsigned mhz = 0;
    return good_ && clock_(device_, kSmClock, &mhz) == 0 ? static_cast<double>(mhz) : -1;
  }

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  bool good_ = false;
};

inline double median(std::vector<double> values) {
  if (values.empty()) return -1;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// launch: of `flops` floating-point operations. About 1.2 s; the first 0.3 s do not count.
inline void sustain(const std::string& name, const std::function<void()>& launch, double flops,
                    const Buffer<Span>& spans) {
  const Nvml nvml;
  const double us = measure(launch, nullptr, 3).us;
  const int warm = static_cast<int>(0.3e6 / us) + 1, count = static_cast<int>(1e6 / us) + 1;
  cudaEvent_t begin, end;
  MICRO_CUDA(cudaEventCreate(&begin));
  MICRO_CUDA(cudaEventCreate(&end));
  std::vector<double> watts, mhz;
  const auto launch_all = [&] {  // a queue of launches fills at 1,024: launching then waits
    for (int i = 0; i < warm; ++i) launch();
    MICRO_CUDA(cudaEventRecord(begin));
    for (int i = 0; i < count; ++i) launch();
    MICRO_CUDA(cudaEventRecord(end));
  };
  std::thread launches(launch_all);
  const auto from = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (i < 20) continue;
    watts.push_back(nvml.watts());
    mhz.push_back(nvml.sm_mhz());
    if (std::chrono::steady_clock::now() - from > std::chrono::milliseconds(1150)) break;
  }
  launches.join();
  MICRO_CUDA(cudaEventSynchronize(end));
  float ms = 0;
  MICRO_CUDA(cudaEventElapsedTime(&ms, begin, end));
  double cycles = 0, ns = 0;
  for (const Span& s : spans.host())
    cycles += static_cast<double>(s.cycles), ns += static_cast<double>(s.nanoseconds);
  Line("3", name)
      .number("tflops", flops * count / ms * 1e-9)
      .number("mhz", cycles / ns * 1e3)
      .number("mhz_nvml", median(mhz))
      .number("watts", median(watts))
      .number("seconds", ms * 1e-3);
}

}  // namespace dsv4::micro
