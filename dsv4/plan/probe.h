// What a benchmark reports about the machine that a model runs on: its name, its measured peak
// rates, its free memory, and the time of each kernel in a step.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dsv4 {

class Device;
class Memory;

struct Roofs {
  double copy_bytes_per_s = 0;    // device to device, bytes read plus bytes written
  double matrix_flops_per_s = 0;  // bf16, 8192^3, random data; 0: not measured
};

struct KernelTotal {
  int64_t launches = 0;
  double seconds = 0;
};

// In order of start_us.
struct KernelRun {
  std::string name;
  double start_us = 0, us = 0;
  int64_t ctas = 0;
};

class Probe {
 public:
  virtual ~Probe() = default;
  virtual std::string name() const = 0;    // "NVIDIA H200", "cpu"
  virtual std::string driver() const = 0;  // "CUDA 13.0"; empty on the host
  virtual int64_t total_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;
  virtual Memory& memory() = 0;
  virtual Roofs measure_roofs() = 0;
  // While on, every launch is timed and takes longer, and no graph is used.
  virtual void time_kernels(bool on) = 0;
  virtual std::map<std::string, KernelTotal> take_times() = 0;  // since the last call
  // Between these two, when each kernel ran; kernels are not kept apart, graphs are used. Throws
  // kUnsupported.
  virtual void start_trace() = 0;
  virtual std::vector<KernelRun> stop_trace() = 0;
};

// Null: the host.
std::unique_ptr<Probe> make_probe(Device* device);
std::unique_ptr<Probe> make_device_probe(Device& device);  // CUDA builds

}  // namespace dsv4
