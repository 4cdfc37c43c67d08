#include "dsv4/comm/device_ranks.h"

#include <algorithm>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/comm/exchange.cuh"
#include "dsv4/comm/peer_memory.h"
#include "dsv4/comm/process_memory.h"
#include "dsv4/comm/rank_processes.h"
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
  const int32_t* owners = nullptr;    // [rows]

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
                    .owners = part.owners == nullptr ? nullptr : part.owners + first_row};
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

// Memory of all ranks. A window has the two buffers of a rank, and its flags after them.
struct DeviceRanks::Windows {
  int world() const { return static_cast<int>(devices.size()); }
  int64_t window_bytes() const {
    return 2 * buffer_bytes + world() * exchange::kCtas * static_cast<int64_t>(sizeof(int64_t));
  }
  // The device of any rank of this process, and the calls of all.
  Device& home() const {
    return **std::ranges::find_if(devices, [](const Device* one) { return one != nullptr; });
  }
  template <class Body>
  void for_own(const Body& body) const {
    for (int r = 0; r < world(); ++r)
      if (Device* device = devices[static_cast<size_t>(r)]; device != nullptr) body(r, *device);
  }

  std::vector<Device*> devices;  // [world]; null: of another process
  int64_t buffer_bytes = 0, limit_ns = 0;
  int ctas = exchange::kCtas;           // of a rank, in every exchange
  std::unique_ptr<Turns> turns;         // null: no GPU has two ranks of this process
  std::vector<unsigned char*> of_rank;  // [world]: windows, which one of these holds:
  std::vector<std::unique_ptr<PeerMemory>> peers;
  std::unique_ptr<OfferedMemory> offered;
  std::vector<std::unique_ptr<OpenedMemory>> opened;
  std::vector<Buffer> done, waited;  // [world]
  // Host memory that all kernels of this process reach.
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
      Part part = columns_of(one.all, one.ends);
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
    Part part{.from = all.data,
              .from_stride = all.row_stride() * element(all),
              .all = all,
              .begin = std::vector<int64_t>(world(), 0),
              .count = std::vector<int64_t>(world(), all.dim(1)),
              .owners = owners.as<int32_t>()};
    exchange_all({std::move(part)}, ~0u, place);
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
      params.windows[r] = windows_.of_rank[r];
      params.flags[r] = reinterpret_cast<int64_t*>(windows_.of_rank[r] + 2 * windows_.buffer_bytes);
    }
    return params;
  }

  Device& device() const { return *windows_.devices[rank()]; }

  Windows& windows_;
  ShardId id_;
  bool in_step_ = false;  // of turns
};

void DeviceRanks::begin(std::vector<Device*> devices, int64_t window_bytes,
                        std::chrono::milliseconds limit) {
  const int world = static_cast<int>(devices.size());
  DSV4_CHECK(world >= 1 && world <= exchange::kMaxRanks, "{} ranks, at most {}", world,
             exchange::kMaxRanks);
  Windows& w = *windows_;
  w.devices = std::move(devices);
  w.buffer_bytes = align_up(window_bytes, kAlign);
  w.limit_ns = std::chrono::nanoseconds(limit).count();
  const int64_t host_bytes = kAlign + world * static_cast<int64_t>(sizeof(Fault));
  w.host = Buffer(DType::kU8, {host_bytes}, w.home().pinned());
  w.stop = reinterpret_cast<int64_t*>(w.host.as<uint8_t>());
  w.faults = reinterpret_cast<Fault*>(w.host.as<uint8_t>() + kAlign);
  w.of_rank.resize(static_cast<size_t>(world));
  w.done.resize(static_cast<size_t>(world));
  w.waited.resize(static_cast<size_t>(world));
  ranks_.resize(static_cast<size_t>(world));
}

void DeviceRanks::end() {
  Windows& w = *windows_;
  w.for_own([&](int r, Device& device) {
    const auto at = static_cast<size_t>(r);
    cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
    w.done[at] = Buffer(DType::kI64, {exchange::kCtas}, device.memory());
    w.waited[at] = Buffer(DType::kI64, {1}, device.memory());
    ranks_[at] = std::make_unique<Rank>(w, ShardId{r, w.world()});
  });
  probe();
}

DeviceRanks::DeviceRanks(std::vector<Device*> devices, int64_t window_bytes,
                         std::chrono::milliseconds limit)
    : windows_(std::make_unique<Windows>()) {
  begin(std::move(devices), window_bytes, limit);
  Windows& w = *windows_;
  std::vector<int> ordinals;
  for (const Device* device : w.devices) ordinals.push_back(device->info().ordinal);
  if (std::set<int>(ordinals.begin(), ordinals.end()).size() < ordinals.size()) {
    w.turns = std::make_unique<Turns>(w.world(), limit);
    w.ctas = kCtasOfShared;
  }
  w.for_own([&](int r, Device& device) {
    w.peers.push_back(
        std::make_unique<PeerMemory>(device.info().ordinal, ordinals, w.window_bytes()));
    w.of_rank[static_cast<size_t>(r)] = w.peers.back()->data();
  });
  end();
}

DeviceRanks::DeviceRanks(Device& device, ShardId id, int64_t window_bytes,
                         std::chrono::milliseconds limit, const Swap& swap)
    : windows_(std::make_unique<Windows>()) {
  std::vector<Device*> devices(static_cast<size_t>(id.world));
  devices[static_cast<size_t>(id.rank)] = &device;
  begin(std::move(devices), window_bytes, limit);
  open_windows(swap);
  end();
}

// Other ranks may write into a window as soon as they have its handle, so it is zeros by then.
void DeviceRanks::open_windows(const Swap& swap) {
  Windows& w = *windows_;
  cuda_check(cudaSetDevice(w.home().info().ordinal), "cudaSetDevice");
  w.offered = std::make_unique<OfferedMemory>(w.window_bytes());
  const std::vector<Bytes> handles = swap(MessageWriter().put(w.offered->handle()).bytes());
  for (size_t r = 0; r < handles.size(); ++r) {
    if (w.devices[r] != nullptr) {
      w.of_rank[r] = w.offered->data();
      continue;
    }
    const auto handle = MessageReader(handles[r]).get<cudaIpcMemHandle_t>();
    w.opened.push_back(std::make_unique<OpenedMemory>(handle, static_cast<int>(r)));
    w.of_rank[r] = w.opened.back()->data();
  }
}

DeviceRanks::~DeviceRanks() {
  abort();  // kernels that still wait for a rank use what goes away now
  windows_->for_own([](int, Device& device) { cudaStreamSynchronize(device.stream()); });
}

void DeviceRanks::set_limit(std::chrono::milliseconds limit) {
  windows_->limit_ns = std::chrono::nanoseconds(limit).count();
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
  const Windows& w = *windows_;
  const auto value = [](int64_t i) { return static_cast<int32_t>(i * 26544357 + 12345); };
  const ColumnEnds ends = column_ends(world(), kColumns, 1);
  std::vector<Buffer> all(ranks_.size());
  w.for_own([&](int r, Device& device) {
    cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
    std::vector<int32_t> own(kRows * kColumns, 0);
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      if (i % kColumns >= first_column(ends, r) && i % kColumns < ends[static_cast<size_t>(r)])
        own[static_cast<size_t>(i)] = value(i);
    Buffer& buffer = all[static_cast<size_t>(r)];
    buffer = Buffer(DType::kI32, {kRows, kColumns}, device.memory());
    device.memory().upload(buffer.view().data, reinterpret_cast<const std::byte*>(own.data()),
                           buffer.view().bytes());
  });
  w.for_own([&](int r, Device&) {
    const Gathered one[] = {{all[static_cast<size_t>(r)].view(), ends}};
    rank(r).gather(one, {"probe of the link"});
  });
  w.for_own([](int, Device& device) { device.wait(); });
  check();
  w.for_own([&](int r, Device& device) {
    std::vector<int32_t> got(kRows * kColumns);
    const TensorView& view = all[static_cast<size_t>(r)].view();
    device.memory().download(reinterpret_cast<std::byte*>(got.data()), view.data, view.bytes());
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      if (got[static_cast<size_t>(i)] != value(i))
        fail(ErrorCode::kUnsupported,
             "rank {} does not get what the others store in its memory: the link between these "
             "GPUs is broken (nvidia-smi topo -p2p w; IOMMU and ACS settings)",
             r);
  });
}

DeviceRanks& device_exchanges(RankProcesses& group, Device& device,
                              std::chrono::milliseconds limit) {
  std::shared_ptr<DeviceRanks>& exchanges = group.device_exchanges();
  if (exchanges == nullptr) {
    exchanges = std::make_shared<DeviceRanks>(
        device, group.id(), kExchangeWindowBytes, limit,
        [&](const Bytes& own) { return group.swap(own, "the other ranks load"); });
    group.on_end([ranks = exchanges.get()] { ranks->abort(); });
  }
  exchanges->set_limit(limit);
  return *exchanges;
}

}  // namespace dsv4
