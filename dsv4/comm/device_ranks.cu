#include "dsv4/comm/device_ranks.h"

#include <algorithm>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/comm/exchange.cuh"
#include "dsv4/comm/peer_memory.h"
#include "dsv4/comm/threads.h"
#include "dsv4/comm/turns.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using exchange::ExchangedTensor;
using exchange::ExchangeParams;
using exchange::Fault;

constexpr int kCtasOfShared = 8;  // of ranks that share a GPU
constexpr int64_t kAlign = 16;    // of a tensor in a buffer, and the largest unit

template <class Unit>
__global__ void __launch_bounds__(exchange::kThreads) exchange_kernel(const ExchangeParams p) {
  exchange::exchange<Unit>(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

// What a rank gives and gets of one tensor.
struct Part {
  const std::byte* from;
  int64_t from_stride;                // bytes between rows
  TensorView all;                     // empty data: this rank gets nothing
  std::vector<int64_t> begin, count;  // [world], columns
  const int32_t* ids = nullptr;       // [rows]; null: columns
  ColumnEnds id_ends{};               // [world]

  int64_t row_bytes() const { return all.dim(1) * item_bytes(all.dtype); }
};

int64_t lowest_bit(int64_t bits) {
  return bits & -bits;
}

// The largest power of two up to kAlign that divides what every rank has of a row, in bytes: equal
// on all ranks.
int64_t granule_of(std::span<const Part> parts) {
  int64_t bits = kAlign;
  for (const Part& part : parts) {
    bits |= part.row_bytes();
    for (size_t r = 0; r < part.begin.size(); ++r)
      bits |= (part.begin[r] | part.count[r]) * item_bytes(part.all.dtype);
  }
  return lowest_bit(bits);
}

// The largest power of two that divides the granule and this rank's addresses.
int64_t unit_of(std::span<const Part> parts, int64_t granule) {
  int64_t bits = granule;
  for (const Part& part : parts) {
    bits |= reinterpret_cast<intptr_t>(part.from) | part.from_stride;
    if (part.all.data != nullptr)
      bits |= reinterpret_cast<intptr_t>(part.all.data) |
              part.all.row_stride() * item_bytes(part.all.dtype);
  }
  return lowest_bit(bits);
}

ExchangedTensor exchanged(const Part& part, int64_t first_row, int64_t rows, int64_t unit) {
  const auto size = item_bytes(part.all.dtype);
  const int64_t to_stride = part.all.data == nullptr ? 0 : part.all.row_stride() * size;
  ExchangedTensor t{.from = part.from + first_row * part.from_stride,
                    .to = nullptr,
                    .from_stride = part.from_stride / unit,
                    .to_stride = to_stride / unit,
                    .window = 0,
                    .rows = static_cast<int32_t>(rows),
                    .columns = static_cast<int32_t>(part.row_bytes() / unit),
                    .begin = {},
                    .count = {},
                    .ids = part.ids == nullptr ? nullptr : part.ids + first_row,
                    .ends = {}};
  for (size_t r = 0; r < part.id_ends.size(); ++r)
    t.ends[r] = static_cast<int32_t>(part.id_ends[r]);
  if (part.all.data != nullptr) t.to = part.all.data + first_row * to_stride;
  for (size_t r = 0; r < part.begin.size(); ++r) {
    t.begin[r] = static_cast<int32_t>(part.begin[r] * size / unit);
    t.count[r] = static_cast<int32_t>(part.count[r] * size / unit);
  }
  return t;
}

void launch_exchange(Device& device, int ctas, const ExchangeParams& params, int64_t unit) {
  const auto run = [&](auto value) {
    launch(device, "exchange", exchange_kernel<decltype(value)>,
           {.grid = ctas, .block = exchange::kThreads}, params);
  };
  switch (unit) {
    case 16:
      return run(uint4{});
    case 8:
      return run(uint2{});
    case 4:
      return run(uint32_t{});
    case 2:
      return run(uint16_t{});
    default:
      return run(uint8_t{});
  }
}

}  // namespace

// Memory of all ranks.
struct DeviceRanks::Windows {
  std::vector<Device*> devices;
  int64_t buffer_bytes = 0, limit_ns = 0;
  int ctas = exchange::kCtas;    // of a rank, in every exchange
  std::unique_ptr<Turns> turns;  // null: no GPU has two ranks
  std::vector<std::unique_ptr<PeerMemory>> buffers, flags;
  std::vector<Buffer> done, waited;
  // Host memory that all kernels reach.
  Buffer host;
  int64_t* stop = nullptr;
  Fault* faults = nullptr;  // [world]
};

class DeviceRanks::Rank final : public Communicator {
 public:
  Rank(Windows& windows, ShardId id) : windows_(windows), id_(id) {}
  ShardId id() const override { return id_; }

  void gather(std::span<const Gathered> tensors, const Place& place) override {
    std::vector<Part> parts;
    for (const Gathered& one : tensors) {
      Part part = one.by_rows() ? rows_of(one) : columns_of(one.all, one.ends);
      part.from = one.all.data + part.begin[rank()] * element(one.all);
      part.from_stride = one.all.row_stride() * element(one.all);
      parts.push_back(std::move(part));
    }
    exchange_all(std::move(parts), ~0u, place);
  }

  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override {
    Part one = columns_of(all, ends);
    one.from = part.data;
    one.from_stride = part.row_stride() * element(part);
    if (id_.rank != 0) one.all.data = nullptr;
    exchange_all({std::move(one)}, 1, place);
  }

  void gather_rows(const TensorView& all, const ConstTensorView& owners,
                   const Place& place) override {
    const ColumnEnds each = column_ends(id_.world, id_.world, 1);  // rank r has the id r
    const Gathered one[] = {{all, each, owners}};
    gather(one, place);
  }

  void step(const std::function<void()>& enqueue) {
    if (windows_.turns == nullptr) return enqueue();
    windows_.turns->begin(id_.rank);
    in_step_ = true;
    try {
      enqueue();
    } catch (...) {
      in_step_ = false;
      windows_.turns->stop();
      throw;
    }
    in_step_ = false;
    windows_.turns->end(id_.rank);
  }

 private:
  size_t rank() const { return static_cast<size_t>(id_.rank); }
  size_t world() const { return static_cast<size_t>(id_.world); }
  static int64_t element(const TensorView& view) { return item_bytes(view.dtype); }

  Part columns_of(const TensorView& all, const ColumnEnds& ends) const {
    Part part{.from = nullptr, .from_stride = 0, .all = all, .begin = {}, .count = {}};
    for (int r = 0; r < id_.world; ++r) {
      part.begin.push_back(first_column(ends, r));
      part.count.push_back(ends[static_cast<size_t>(r)] - part.begin.back());
    }
    return part;
  }

  Part rows_of(const Gathered& one) const {
    return {.from = nullptr,
            .from_stride = 0,
            .all = one.all,
            .begin = std::vector<int64_t>(world(), 0),
            .count = std::vector<int64_t>(world(), one.all.dim(1)),
            .ids = one.ids.as<int32_t>(),
            .id_ends = one.ends};
  }

  // Divided by rows where the tensors are larger than a buffer.
  void exchange_all(std::vector<Part> parts, uint32_t receivers, const Place& place) {
    if (id_.world == 1) return;
    DSV4_CHECK(parts.size() <= exchange::kMaxTensors, "{}: {} tensors, at most {}",
               to_string(place), parts.size(), exchange::kMaxTensors);
    int64_t rows = 0, row_bytes = 0;
    for (const Part& part : parts) {
      rows = std::max(rows, part.all.dim(0));
      row_bytes += align_up(part.row_bytes(), kAlign);
    }
    DSV4_CHECK(row_bytes <= windows_.buffer_bytes, "{}: a row of {} bytes, and a window of {}",
               to_string(place), row_bytes, windows_.buffer_bytes);
    cuda_check(cudaSetDevice(device().info().ordinal), "cudaSetDevice");
    const int64_t granule = granule_of(parts), unit = unit_of(parts, granule);
    const int64_t step = windows_.buffer_bytes / row_bytes;
    for (int64_t first = 0; first < rows; first += step) {
      ExchangeParams params = common(receivers, place);
      params.granule = static_cast<int32_t>(granule / unit);
      int64_t window = 0;
      for (const Part& part : parts) {
        const int64_t count = std::clamp<int64_t>(part.all.dim(0) - first, 0, step);
        if (count == 0) continue;
        ExchangedTensor& t = params.tensors[params.num_tensors++];
        t = exchanged(part, first, count, unit);
        t.window = window;
        window += align_up(count * part.row_bytes(), kAlign);
      }
      launch_exchange(device(), windows_.ctas, params, unit);
    }
    if (in_step_) windows_.turns->pass(id_.rank);
  }

  ExchangeParams common(uint32_t receivers, const Place& place) const {
    ExchangeParams params{.rank = id_.rank,
                          .world = id_.world,
                          .num_tensors = 0,
                          .receivers = receivers,
                          .granule = 1,
                          .tensors = {},
                          .windows = {},
                          .flags = {},
                          .buffer_bytes = windows_.buffer_bytes,
                          .done = windows_.done[rank()].as<int64_t>(),
                          .waited = windows_.waited[rank()].as<int64_t>(),
                          .stop = windows_.stop,
                          .fault = windows_.faults + id_.rank,
                          .limit_ns = windows_.limit_ns,
                          .what = place.what,
                          .layer = place.layer};
    for (size_t r = 0; r < world(); ++r) {
      params.windows[r] = windows_.buffers[r]->data();
      params.flags[r] = reinterpret_cast<int64_t*>(windows_.flags[r]->data());
    }
    return params;
  }

  Device& device() const { return *windows_.devices[rank()]; }

  Windows& windows_;
  ShardId id_;
  bool in_step_ = false;  // of turns
};

DeviceRanks::DeviceRanks(std::vector<Device*> devices, int64_t window_bytes,
                         std::chrono::milliseconds limit)
    : windows_(std::make_unique<Windows>()) {
  const int world = static_cast<int>(devices.size());
  DSV4_CHECK(world >= 1 && world <= exchange::kMaxRanks, "{} ranks, at most {}", world,
             exchange::kMaxRanks);
  Windows& w = *windows_;
  w.devices = std::move(devices);
  w.buffer_bytes = align_up(window_bytes, kAlign);
  w.limit_ns = std::chrono::nanoseconds(limit).count();
  const int64_t host_bytes = kAlign + world * static_cast<int64_t>(sizeof(Fault));
  w.host = Buffer(DType::kU8, {host_bytes}, w.devices.front()->pinned());
  w.stop = reinterpret_cast<int64_t*>(w.host.as<uint8_t>());
  w.faults = reinterpret_cast<Fault*>(w.host.as<uint8_t>() + kAlign);
  std::vector<int> ordinals;
  for (const Device* device : w.devices) ordinals.push_back(device->info().ordinal);
  if (std::set<int>(ordinals.begin(), ordinals.end()).size() < ordinals.size()) {
    w.turns = std::make_unique<Turns>(world, limit);
    w.ctas = kCtasOfShared;
  }
  for (int r = 0; r < world; ++r) {
    const int ordinal = ordinals[static_cast<size_t>(r)];
    w.buffers.push_back(std::make_unique<PeerMemory>(ordinal, ordinals, 2 * w.buffer_bytes));
    w.flags.push_back(std::make_unique<PeerMemory>(
        ordinal, ordinals, world * exchange::kCtas * static_cast<int64_t>(sizeof(int64_t))));
    w.done.emplace_back(DType::kI64, std::initializer_list<int64_t>{exchange::kCtas},
                        w.devices[static_cast<size_t>(r)]->memory());
    w.waited.emplace_back(DType::kI64, std::initializer_list<int64_t>{1},
                          w.devices[static_cast<size_t>(r)]->memory());
    ranks_.push_back(std::make_unique<Rank>(w, ShardId{r, world}));
  }
  probe();
}

DeviceRanks::~DeviceRanks() {
  abort();  // kernels that still wait for a rank use what goes away now
  for (const Device* device : windows_->devices) cudaStreamSynchronize(device->stream());
}

int DeviceRanks::world() const {
  return static_cast<int>(ranks_.size());
}

Communicator& DeviceRanks::rank(int r) {
  return *ranks_.at(static_cast<size_t>(r));
}

void DeviceRanks::step(int r, const std::function<void()>& enqueue) {
  ranks_.at(static_cast<size_t>(r))->step(enqueue);
}

double DeviceRanks::waited(int r) const {
  int64_t nanoseconds = 0;
  windows_->devices.at(static_cast<size_t>(r))
      ->memory()
      .download(reinterpret_cast<std::byte*>(&nanoseconds),
                windows_->waited[static_cast<size_t>(r)].view().data, sizeof nanoseconds);
  return static_cast<double>(nanoseconds) / 1e9;
}

void DeviceRanks::abort() {
  if (windows_->turns != nullptr) windows_->turns->stop();
  *static_cast<volatile int64_t*>(windows_->stop) = 1;
}

void DeviceRanks::check() const {
  if (*static_cast<volatile int64_t*>(windows_->stop) == 0) return;
  for (int r = 0; r < world(); ++r) {
    const Fault& fault = windows_->faults[r];
    if (fault.failed != 0)
      throw RanksStopped(fmt::format("no answer from rank {} for {} s ({})", fault.peer,
                                     static_cast<double>(windows_->limit_ns) / 1e9,
                                     to_string({fault.what, fault.layer})));
  }
  throw RanksStopped("the ranks were stopped");
}

// One exchange of known values: a link whose stores do not arrive is found here, and not by wrong
// tokens.
void DeviceRanks::probe() {
  constexpr int64_t kRows = 8, kColumns = 64;
  const auto value = [](int64_t i) { return static_cast<int32_t>(i * 26544357 + 12345); };
  const ColumnEnds ends = column_ends(world(), kColumns, 1);
  std::vector<Buffer> all;
  for (int r = 0; r < world(); ++r) {
    Device& device = *windows_->devices[static_cast<size_t>(r)];
    cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
    std::vector<int32_t> own(kRows * kColumns, 0);
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      if (i % kColumns >= first_column(ends, r) && i % kColumns < ends[static_cast<size_t>(r)])
        own[static_cast<size_t>(i)] = value(i);
    all.emplace_back(DType::kI32, std::initializer_list<int64_t>{kRows, kColumns}, device.memory());
    device.memory().upload(all.back().view().data, reinterpret_cast<const std::byte*>(own.data()),
                           all.back().view().bytes());
  }
  for (int r = 0; r < world(); ++r) {
    const Gathered one[] = {{all[static_cast<size_t>(r)].view(), ends}};
    rank(r).gather(one, {"probe of the link"});
  }
  for (Device* device : windows_->devices) device->wait();
  check();
  for (int r = 0; r < world(); ++r) {
    std::vector<int32_t> got(kRows * kColumns);
    const TensorView& view = all[static_cast<size_t>(r)].view();
    windows_->devices[static_cast<size_t>(r)]->memory().download(
        reinterpret_cast<std::byte*>(got.data()), view.data, view.bytes());
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      if (got[static_cast<size_t>(i)] != value(i))
        fail(ErrorCode::kUnsupported,
             "rank {} does not get what the others store in its memory: the link between these "
             "GPUs is broken (nvidia-smi topo -p2p w; IOMMU and ACS settings)",
             r);
  }
}

}  // namespace dsv4
