#include "dsv4/comm/device_ranks.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/comm/exchange_launch.cuh"
#include "dsv4/comm/nccl_group.h"
#include "dsv4/comm/peer_memory.h"
#include "dsv4/comm/process_memory.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/comm/threads.h"
#include "dsv4/comm/turns.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

using exchange::ExchangedTensor;
using exchange::ExchangeParams;
using exchange::Fault;
using exchange::kAlign;
using exchange::Part;

namespace {

constexpr int kCtasOfShared = 8;  // of ranks that share a GPU

const char* name(ExchangeKind kind) {
  return kind == ExchangeKind::kPeer ? "peer" : "nccl";
}

}  // namespace

// Memory of all ranks. A window has two buffers of a rank, two of words, and flags after them.
struct DeviceRanks::Windows {
  int world() const { return static_cast<int>(devices.size()); }
  static constexpr int64_t kBytesOfWords =
      2 * exchange::kWords * static_cast<int64_t>(sizeof(ptx::NumberedWord));
  int64_t window_bytes() const {
    return 2 * buffer_bytes + kBytesOfWords +
           world() * exchange::kCtas * static_cast<int64_t>(sizeof(int64_t));
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
  int ctas = 0;                         // of a rank, at most; all run together
  std::unique_ptr<Turns> turns;         // null: no GPU has two ranks of this process
  std::vector<unsigned char*> of_rank;  // [world]: windows, which one of these holds:
  std::vector<std::unique_ptr<PeerMemory>> peers;
  std::unique_ptr<OfferedMemory> offered;
  std::vector<std::unique_ptr<OpenedMemory>> opened;
  Buffer slots;  // of NCCL, [world, buffer_bytes]
  std::mutex late_mutex;
  std::string late;                  // why NCCL was ended
  std::vector<Buffer> done, waited;  // [world]
  // Host memory that all kernels of this process reach.
  Buffer host;
  int64_t* stop = nullptr;
  Fault* faults = nullptr;  // [world]
  // Null: by windows. Its thread writes what stands above, so it goes first.
  std::unique_ptr<NcclGroup> nccl;
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
    if (windows_.turns == nullptr) {
      try {
        enqueue();
      } catch (...) {
        if (windows_.nccl != nullptr) windows_.nccl->abort();  // no mark will end what waits
        throw;
      }
      return mark();
    }
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

  // What is enqueued is to end within the limit; kernels of windows see to that themselves.
  void mark() {
    if (windows_.nccl != nullptr) windows_.nccl->mark(device().stream());
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
    const int64_t granule = exchange::granule_of(parts);
    const bool words = windows_.nccl == nullptr && receivers == ~0u &&
                       rows * row_bytes <= windows_.buffer_bytes &&
                       exchange::by_words(parts, granule, rows * row_bytes);
    const int64_t unit = std::min(exchange::unit_of(parts, granule),
                                  words ? exchange::kWordBytes : exchange::kAlign);
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
        const bool slots = windows_.nccl != nullptr;
        window += align_up(count * (slots ? part.widest_bytes() : part.row_bytes()), kAlign);
      }
      if (words)
        exchange::launch_words(
            device(), exchange::words_grid(exchange::most_taken_words(parts), windows_.ctas),
            params, unit, windows_.turns == nullptr);
      else
        send(params, unit, window);
    }
    if (in_step_) windows_.turns->pass(id_.rank);
  }

  // bytes: of the tensors in a window, or in a slot
  void send(ExchangeParams& params, int64_t unit, int64_t bytes) {
    if (windows_.nccl == nullptr)
      return exchange::launch_exchange(device(), windows_.ctas, params, unit);
    params.windows[rank()] = reinterpret_cast<unsigned char*>(windows_.slots.view().data);
    params.buffer_bytes = bytes;
    exchange::launch_slots(device(), params, unit, true);
    windows_.nccl->all_gather(params.windows[rank()], bytes, device().stream());
    if ((params.receivers >> id_.rank & 1) != 0)
      exchange::launch_slots(device(), params, unit, false);
  }

  ExchangeParams common(uint32_t receivers, const Place& place) const {
    ExchangeParams params{.rank = id_.rank,
                          .world = id_.world,
                          .num_tensors = 0,
                          .receivers = receivers,
                          .granule = 1,
                          .tensors = {},
                          .windows = {},
                          .words = {},
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
      unsigned char* const words = windows_.of_rank[r] + 2 * windows_.buffer_bytes;
      params.windows[r] = windows_.of_rank[r];
      params.words[r] = reinterpret_cast<ptx::NumberedWord*>(words);
      params.flags[r] = reinterpret_cast<int64_t*>(words + Windows::kBytesOfWords);
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
  // Ranks are GPUs of one kind, so this is equal on all of them.
  w.ctas = std::min(exchange::kCtas, w.home().info().num_sms);
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
  if (exchange_kind() == ExchangeKind::kNccl)
    fail(ErrorCode::kBadInput, "--exchange nccl is for ranks that are processes on GPUs");
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
  compare_kinds(swap);
  exchange_kind() == ExchangeKind::kPeer ? open_windows(swap) : open_nccl(swap);
  end();
}

void DeviceRanks::compare_kinds(const Swap& swap) const {
  const std::vector<Bytes> kinds = swap(MessageWriter().put(exchange_kind()).bytes());
  for (size_t r = 0; r < kinds.size(); ++r) {
    const auto kind = MessageReader(kinds[r]).get<ExchangeKind>();
    if (kind != exchange_kind())
      fail(ErrorCode::kBadInput, "--exchange {} here, {} on rank {}: give all ranks the same words",
           name(exchange_kind()), name(kind), r);
  }
}

void DeviceRanks::open_nccl(const Swap& swap) {
  Windows& w = *windows_;
  cuda_check(cudaSetDevice(w.home().info().ordinal), "cudaSetDevice");
  w.slots = Buffer(DType::kU8, {w.world(), w.buffer_bytes}, w.home().memory());
  w.home().wait();
  ShardId id{0, w.world()};
  w.for_own([&](int r, Device&) { id.rank = r; });
  w.nccl = std::make_unique<NcclGroup>(
      id,
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(w.limit_ns)),
      swap, [this](const std::string& why) {
        {
          const std::lock_guard lock(windows_->late_mutex);
          windows_->late = why;
        }
        abort();
      });
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
  // Kernels that still wait for a rank use what goes away now. Those of NCCL have ended, or it was
  // aborted.
  if (windows_->nccl == nullptr) abort();
  windows_->for_own([](int, Device& device) { cudaStreamSynchronize(device.stream()); });
}

void DeviceRanks::set_limit(std::chrono::milliseconds limit) {
  windows_->limit_ns = std::chrono::nanoseconds(limit).count();
  if (windows_->nccl != nullptr) windows_->nccl->set_limit(limit);
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
  if (windows_->nccl != nullptr) windows_->nccl->abort();
}

void DeviceRanks::check() const {
  if (*static_cast<volatile int64_t*>(windows_->stop) == 0) return;
  {
    const std::lock_guard lock(windows_->late_mutex);
    if (!windows_->late.empty()) throw RanksStopped(windows_->late);
  }
  for (int r = 0; r < world(); ++r) {
    const Fault& fault = windows_->faults[r];
    if (fault.failed != 0)
      throw RanksStopped(fmt::format("no answer from rank {} for {} s ({})", fault.peer,
                                     static_cast<double>(windows_->limit_ns) / 1e9,
                                     to_string({fault.what, fault.layer})));
  }
  throw RanksStopped("the ranks were stopped");
}

// Exchanges of known values, by words and by flags: a link whose stores do not arrive is found
// here, and not by wrong tokens.
void DeviceRanks::probe() {
  for (const int64_t bytes : {int64_t{2} << 10, 2 * exchange::kMaxBytesByWords}) probe(bytes);
}

void DeviceRanks::probe(int64_t bytes) {
  constexpr int64_t kColumns = 64;
  const int64_t rows = bytes / kColumns / static_cast<int64_t>(sizeof(int32_t));
  const Windows& w = *windows_;
  const auto value = [](int64_t i) { return static_cast<int32_t>(i * 26544357 + 12345); };
  const ColumnEnds ends = column_ends(world(), kColumns, 1);
  std::vector<Buffer> all(ranks_.size());
  w.for_own([&](int r, Device& device) {
    cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
    std::vector<int32_t> own(rows * kColumns, 0);
    for (int64_t i = 0; i < rows * kColumns; ++i)
      if (i % kColumns >= first_column(ends, r) && i % kColumns < ends[static_cast<size_t>(r)])
        own[static_cast<size_t>(i)] = value(i);
    Buffer& buffer = all[static_cast<size_t>(r)];
    buffer = Buffer(DType::kI32, {rows, kColumns}, device.memory());
    device.memory().upload(buffer.view().data, reinterpret_cast<const std::byte*>(own.data()),
                           buffer.view().bytes());
  });
  w.for_own([&](int r, Device&) {
    const Gathered one[] = {{all[static_cast<size_t>(r)].view(), ends}};
    rank(r).gather(one, {"probe of the link"});
    ranks_[static_cast<size_t>(r)]->mark();
  });
  w.for_own([](int, Device& device) { device.wait(); });
  check();
  w.for_own([&](int r, Device& device) {
    std::vector<int32_t> got(rows * kColumns);
    const TensorView& view = all[static_cast<size_t>(r)].view();
    device.memory().download(reinterpret_cast<std::byte*>(got.data()), view.data, view.bytes());
    for (int64_t i = 0; i < rows * kColumns; ++i)
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
