#include "dsv4/convert/weight_workers.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// The calls of one run().
class Calls {
 public:
  explicit Calls(size_t count) : count_(count) {}

  // False: none is left, or one has thrown.
  bool take(size_t* at) {
    const std::lock_guard lock(mutex_);
    if (error_ || next_ == count_) return false;
    *at = next_++;
    return true;
  }
  void threw(size_t at) {
    const std::lock_guard lock(mutex_);
    if (error_ && at > failed_) return;
    error_ = std::current_exception();
    failed_ = at;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  const size_t count_;
  size_t next_ = 0, failed_ = 0;
  std::exception_ptr error_;
};

void work_off(Calls& calls, WeightWorker& worker,
              const std::function<void(WeightWorker&, size_t)>& work) {
  for (size_t at = 0; calls.take(&at);) {
    try {
      worker.enter();
      work(worker, at);
    } catch (...) {
      calls.threw(at);
    }
  }
}

}  // namespace

WeightWorker::WeightWorker(const Device* device, const Checkpoint& checkpoint)
    : host_(std::make_unique<WeightConverter>()),
      gpu_(device == nullptr ? nullptr
                             : std::make_unique<WeightConverter>(gpu_room(*device, checkpoint))) {
}

void WeightWorker::enter() const {
  if (gpu_ != nullptr) gpu_->enter();
}

WeightError WeightWorker::convert(const WeightView& source, const OutputItem& item,
                                  const ConvertChoice& choice, const PieceSink& sink) {
  if (gpu_ == nullptr || !WeightConverter::on_gpu(item))
    return host_->convert(source, item, choice, sink);
  std::string why;
  try {
    return gpu_->convert(source, item, choice, sink);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    why = error.what();
  }
  host_->convert(source, item, choice, sink);
  fail(ErrorCode::kUnsupported, "{}; the CPU does not refuse it: use --device cpu", why);
}

// With a GPU as many as it takes for reading, copies, kernels and writing to overlap.
int WeightWorkers::default_number(const Device* device) {
  return device == nullptr ? 1 : std::clamp(omp_get_max_threads(), 2, 8);
}

WeightWorkers::WeightWorkers(const Device* device, const Checkpoint& checkpoint, int number) {
  for (int i = 0; i < number; ++i)
    workers_.push_back(std::make_unique<WeightWorker>(device, checkpoint));
}

void WeightWorkers::run(size_t count, const std::function<void(WeightWorker&, size_t)>& work) {
  Calls calls(count);
  if (workers_.size() == 1) {
    work_off(calls, first(), work);
    return calls.rethrow();
  }
  const int cores = std::max(1, omp_get_max_threads() / static_cast<int>(workers_.size()));
  std::vector<std::thread> threads;
  for (const auto& worker : workers_) {
    threads.emplace_back([&calls, &work, cores, at = worker.get()] {
      omp_set_num_threads(cores);  // a new thread would use them all
      work_off(calls, *at, work);
    });
  }
  for (std::thread& thread : threads) thread.join();
  calls.rethrow();
}

}  // namespace dsv4
