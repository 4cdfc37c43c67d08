// The waves of expert_waves.h on a device: one more stream, and for each half of the transient
// places an event when it is full and one when it has been read.

#include <algorithm>

#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/engine/expert_waves.h"

namespace dsv4 {
namespace {

class DeviceWaves final : public StoreWaves {
 public:
  DeviceWaves(Device& device, ExpertStore& store)
      : device_(device),
        store_(store),
        table_(DType::kI64, {store.places().layers(), store.places().experts}, device.memory()) {
    device.wait();  // zeroed on the device's stream
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~DeviceWaves() override {
    cudaStreamSynchronize(stream_);  // the places outlive this, but the marks do not
    cudaStreamDestroy(stream_);
  }
  DeviceWaves(const DeviceWaves&) = delete;
  DeviceWaves& operator=(const DeviceWaves&) = delete;

  void places_changed() override { planned_ = false; }

  void begin_step() override {
    if (!planned_) make_plan();
    // Kernels of earlier steps may still read the transient places.
    for (StreamMark& mark : read_) mark.record(device_.stream());
    for (int64_t l = 0; l < std::min<int64_t>(2, store_.places().layers()); ++l) start_copies(l);
    store_.count_streamed(plan_.bytes);
  }

  ConstTensorView begin_layer(int64_t layer) override {
    full_[layer % 2].let_wait(device_.stream());
    return table_.view().slice(0, layer, layer + 1).reshape({store_.places().experts});
  }

  void end_layer(int64_t layer) override {
    read_[layer % 2].record(device_.stream());
    if (layer + 2 < store_.places().layers()) start_copies(layer + 2);
  }

 private:
  void make_plan() {
    std::vector<int32_t> place_of(static_cast<size_t>(store_.places().all()));
    store_.read_places(place_of);
    plan_ = plan_waves(store_, place_of);
    device_.memory().upload(table_.view().data,
                            reinterpret_cast<const std::byte*>(plan_.addresses.data()),
                            table_.view().bytes());
    planned_ = true;
  }

  void start_copies(int64_t layer) {
    read_[layer % 2].let_wait(stream_);
    for (const CopyPiece& copy : plan_.of_layer(layer))
      cuda_check(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.bytes),
                                 cudaMemcpyHostToDevice, stream_),
                 "copy of an expert to the GPU");
    full_[layer % 2].record(stream_);
  }

  Device& device_;
  ExpertStore& store_;
  const Buffer table_;  // [layers, e] I64, WavePlan::addresses
  cudaStream_t stream_ = nullptr;
  StreamMark full_[2], read_[2];  // of each half
  WavePlan plan_;
  bool planned_ = false;
};

}  // namespace

std::unique_ptr<StoreWaves> make_store_waves(Device& device, ExpertStore& store) {
  return std::make_unique<DeviceWaves>(device, store);
}

}  // namespace dsv4
