#include "dsv4/comm/device_ranks.h"

#include <algorithm>

#include "dsv4/comm/device_rank.cuh"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/comm/threads.h"
#include "dsv4/device/current_device.h"

namespace dsv4 {
namespace {

// SMs of a GPU that exchanges of ranks which share it wait on. They are few, because kernels with
// clusters of 16 CTAs want most SMs of a GPC.
constexpr int kWaitingSms = 3;

const char* name(ExchangeKind kind) {
  return kind == ExchangeKind::kPeer ? "peer" : "nccl";
}

}  // namespace

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
  const int64_t host_bytes = kAlign + world * static_cast<int64_t>(sizeof(PeerFault));
  w.host = Buffer(DType::kU8, {host_bytes}, w.home().pinned());
  w.stop = reinterpret_cast<int64_t*>(w.host.as<uint8_t>());
  w.faults = reinterpret_cast<PeerFault*>(w.host.as<uint8_t>() + kAlign);
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
    w.done[at] = Buffer(DType::kI64, {PeerWait::kPlaces}, device.memory());
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
  const std::vector<int> ordinals = w.ordinals();
  int64_t most = 1;  // ranks on a GPU
  for (const int ordinal : ordinals) most = std::max(most, std::ranges::count(ordinals, ordinal));
  if (most > 1) {
    w.turns = std::make_unique<Turns>(w.world(), limit);
    w.ctas = std::max(1, kWaitingSms / static_cast<int>(most - 1));
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
    : windows_(std::make_unique<Windows>()), swap_(swap) {
  std::vector<Device*> devices(static_cast<size_t>(id.world));
  devices[static_cast<size_t>(id.rank)] = &device;
  begin(std::move(devices), window_bytes, limit);
  compare_kinds();
  exchange_kind() == ExchangeKind::kPeer ? open_windows() : open_nccl();
  end();
}

void DeviceRanks::compare_kinds() const {
  const std::vector<Bytes> kinds = swap_(MessageWriter().put(exchange_kind()).bytes());
  for (size_t r = 0; r < kinds.size(); ++r) {
    const auto kind = MessageReader(kinds[r]).get<ExchangeKind>();
    if (kind != exchange_kind())
      fail(ErrorCode::kBadInput, "--exchange {} here, {} on rank {}: give all ranks the same words",
           name(exchange_kind()), name(kind), r);
  }
}

void DeviceRanks::open_nccl() {
  Windows& w = *windows_;
  cuda_check(cudaSetDevice(w.home().info().ordinal), "cudaSetDevice");
  w.slots = Buffer(DType::kU8, {w.world(), w.buffer_bytes}, w.home().memory());
  w.home().wait();
  ShardId id{0, w.world()};
  w.for_own([&](int r, Device&) { id.rank = r; });
  w.nccl = std::make_unique<NcclGroup>(
      id,
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(w.limit_ns)),
      swap_, [this](const std::string& why) {
        {
          const std::lock_guard lock(windows_->late_mutex);
          windows_->late = why;
        }
        abort();
      });
}

// Other ranks may write into a window as soon as they have its handle, so it is zeros by then.
void DeviceRanks::open_windows() {
  Windows& w = *windows_;
  cuda_check(cudaSetDevice(w.home().info().ordinal), "cudaSetDevice");
  w.offered = std::make_unique<OfferedMemory>(w.window_bytes());
  w.for_own([&](int r, Device&) { w.of_rank = open_offered(*w.offered, r, swap_, w.opened); });
}

void DeviceRanks::make_symmetric(int r, const SymmetricBytes& bytes) {
  Windows& w = *windows_;
  if (w.nccl != nullptr || world() == 1 || bytes == SymmetricBytes{}) return;
  const VisitDevice visit(*w.devices[static_cast<size_t>(r)], w.home());
  if (w.symmetric == nullptr) w.symmetric = std::make_unique<SymmetricRanks>(world());
  swap_ != nullptr ? w.symmetric->open(r, bytes, swap_) : w.symmetric->add(r, bytes, w.ordinals());
}

// Errors of CUDA are left to the end of the program.
void DeviceRanks::close_others() {
  abort();
  Windows& w = *windows_;
  w.for_own([](int, Device& device) {
    cudaSetDevice(device.info().ordinal);
    cudaStreamSynchronize(device.stream());
  });
  w.nccl.reset();
  w.opened.clear();
  if (w.symmetric != nullptr) w.symmetric->close_others();
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

void DeviceRanks::pass_turn(int r) {
  if (windows_->turns != nullptr) windows_->turns->pass(r);
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
    const PeerFault& fault = windows_->faults[r];
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
    group.on_close([ranks = exchanges.get()] { ranks->close_others(); });
  }
  exchanges->set_limit(limit);
  return *exchanges;
}

}  // namespace dsv4
