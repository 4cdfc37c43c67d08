// The waves of expert_waves.h on a device: one more stream, and for each half of the transient
// places an event when it is full and one when it has been read.

#include <algorithm>

#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/engine/expert_waves.h"
#include "dsv4/ops/parts/experts/expert_stack.h"
#include "dsv4/ops/parts/experts/expert_turns.h"

namespace dsv4 {
namespace {

// The turns are those of the layer that is computed at present.
class DeviceWaves final : public StoreWaves, private ExpertTurns {
 public:
  DeviceWaves(Device& device, ExpertStore& store)
      : device_(device),
        store_(store),
        addresses_(DType::kI64, {store.places().layers(), store.places().experts}, device.memory()),
        turn_of_(DType::kI32, {store.places().layers(), store.places().experts}, device.memory()) {
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
    for (int64_t w = 0; w < std::min<int64_t>(2, plan_.waves()); ++w) start_copies(w);
    next_ = 0;
    store_.count_streamed(plan_.bytes);
  }

  void begin_layer(int64_t layer, ExpertImages& images) override {
    layer_ = layer;
    images.places = of_layer(addresses_);
    images.turns = this;
  }

  void end_layer(int64_t layer) override {
    const int64_t end = plan_.first_wave[static_cast<size_t>(layer + 1)];
    DSV4_CHECK(next_ == end, "layer {} ends before wave {}, not {}", layer, next_, end);
  }

 private:
  int64_t first_wave() const { return plan_.first_wave[static_cast<size_t>(layer_)]; }
  int count() const override {
    return static_cast<int>(plan_.first_wave[static_cast<size_t>(layer_ + 1)] - first_wave());
  }
  ConstTensorView turn_of() const override { return of_layer(turn_of_); }
  bool begin(int turn) override {
    DSV4_CHECK(next_ == first_wave() + turn, "turn {} of layer {}: wave {} is next", turn, layer_,
               next_);
    full_[next_ % 2].let_wait(device_.stream());
    return true;
  }
  void end(int /*turn*/) override {
    read_[next_ % 2].record(device_.stream());
    if (next_ + 2 < plan_.waves()) start_copies(next_ + 2);
    ++next_;
  }

  ConstTensorView of_layer(const Buffer& table) const {
    return table.view().slice(0, layer_, layer_ + 1).reshape({store_.places().experts});
  }

  void make_plan() {
    std::vector<int32_t> place_of(static_cast<size_t>(store_.places().all()));
    store_.read_places(place_of);
    plan_ = plan_waves(store_, place_of);
    upload(addresses_, plan_.addresses.data());
    upload(turn_of_, plan_.turn_of.data());
    planned_ = true;
  }

  void upload(const Buffer& table, const void* from) {
    device_.memory().upload(table.view().data, static_cast<const std::byte*>(from),
                            table.view().bytes());
  }

  void start_copies(int64_t wave) {
    read_[wave % 2].let_wait(stream_);
    for (const CopyPiece& copy : plan_.of_wave(wave))
      cuda_check(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.bytes),
                                 cudaMemcpyHostToDevice, stream_),
                 "copy of an expert to the GPU");
    full_[wave % 2].record(stream_);
  }

  Device& device_;
  ExpertStore& store_;
  const Buffer addresses_, turn_of_;  // [layers, e] I64, I32 (WavePlan)
  cudaStream_t stream_ = nullptr;
  StreamMark full_[2], read_[2];  // of each half
  WavePlan plan_;
  bool planned_ = false;
  int64_t layer_ = 0, next_ = 0;  // the layer that is computed; the wave that begins next
};

}  // namespace

std::unique_ptr<StoreWaves> make_store_waves(Device& device, ExpertStore& store) {
  return std::make_unique<DeviceWaves>(device, store);
}

}  // namespace dsv4
