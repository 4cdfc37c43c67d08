// The second stream of fetch_beside.h on a device, and the lists of a fetch.

#include <optional>

#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/engine/expert_waves.h"
#include "dsv4/ops/parts/experts_fetch/fetch_beside.h"
#include "dsv4/ops/parts/experts_fetch/link_copies.h"

namespace dsv4 {
namespace {

class DeviceFetch final : public FetchBeside {
 public:
  DeviceFetch(Device& device, int64_t experts)
      : device_(device),
        turn_of_(DType::kI32, {experts}, device.memory()),
        moves_(DType::kI32, {experts, 2}, device.memory()),
        count_(DType::kI32, {1}, device.memory()),
        lists_{.turn_of = turn_of_.view(), .moves = moves_.view(), .count = count_.view()} {
    device.wait();  // zeroed on the device's stream
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    second_.emplace(device.info(), stream_, TensorView());
  }
  ~DeviceFetch() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  DeviceFetch(const DeviceFetch&) = delete;
  DeviceFetch& operator=(const DeviceFetch&) = delete;

  const FetchLists& lists() const override { return lists_; }
  int busy_sms(int turn) const override { return turn == 0 ? fetch_ctas() : 0; }
  Device& fork() override {
    decided_.record(device_.stream());
    decided_.let_wait(stream_);
    return *second_;
  }
  void join() override { copied_.record(stream_); }
  bool begin(int turn) override {
    if (turn == 0) return false;
    copied_.let_wait(device_.stream());
    return true;
  }
  void end(int) override {}

 private:
  Device& device_;
  const Buffer turn_of_, moves_, count_;
  const FetchLists lists_;
  cudaStream_t stream_ = nullptr;
  std::optional<Device> second_;  // the device, with that stream and without workspace
  StreamMark decided_, copied_;
};

}  // namespace

std::unique_ptr<FetchBeside> make_store_fetch(Device& device, const ExpertStore& store) {
  return std::make_unique<DeviceFetch>(device, store.places().experts);
}

}  // namespace dsv4
