// Converts several weights at a time, so that reading, copies to and from a GPU, its kernels and
// writing overlap. On the host one weight at a time is converted, by all cores.
//
// A worker has a converter of the host and, with a GPU, one of the GPU with a CUDA stream, about
// 200 MiB of GPU memory and the page-locked memory that one piece takes.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "dsv4/convert/convert_weight.h"

namespace dsv4 {

class WeightWorker {
 public:
  // device: may be null
  WeightWorker(const Device* device, const Checkpoint& checkpoint);

  void enter() const;
  WeightConverter& on_host() { return *host_; }
  // By the GPU where it can. A weight that the GPU refuses is repeated on the host, whose error
  // names the value.
  WeightError convert(const WeightView& source, const OutputItem& item, const ConvertChoice& choice,
                      const PieceSink& sink);

 private:
  std::unique_ptr<WeightConverter> host_, gpu_;
};

class WeightWorkers {
 public:
  // How many weights at a time for a device, which may be null.
  static int default_number(const Device* device);

  WeightWorkers(const Device* device, const Checkpoint& checkpoint, int number);

  WeightWorker& first() { return *workers_.front(); }
  // Calls work(worker, i) for i from 0 to count - 1, started in this order; a single worker stays
  // in the calling thread. When calls throw, no further ones are started, and the exception of the
  // least i is thrown.
  void run(size_t count, const std::function<void(WeightWorker&, size_t)>& work);

 private:
  std::vector<std::unique_ptr<WeightWorker>> workers_;
};

}  // namespace dsv4
