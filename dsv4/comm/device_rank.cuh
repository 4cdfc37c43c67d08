// What the ranks of a group share (DeviceRanks::Windows), and one of them, which turns the calls of
// a communicator into launches of exchange kernels.

#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/comm/device_ranks.h"
#include "dsv4/comm/exchange_launch.cuh"
#include "dsv4/comm/nccl_group.h"
#include "dsv4/comm/peer_memory.h"
#include "dsv4/comm/process_memory.h"
#include "dsv4/comm/symmetric_ranks.h"
#include "dsv4/comm/turns.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

using exchange::ExchangedTensor;
using exchange::ExchangeParams;
using exchange::kAlign;
using exchange::Part;
using exchange::Way;

// Memory of all ranks. A window has two buffers of a rank, two of words, and flags after them.
struct DeviceRanks::Windows {
  int world() const { return static_cast<int>(devices.size()); }
  static constexpr int64_t kBytesOfWords =
      2 * PeerWords::kInBuffer * static_cast<int64_t>(sizeof(ptx::NumberedWord));
  int64_t window_bytes() const {
    return 2 * buffer_bytes + kBytesOfWords +
           world() * exchange::kCtas * static_cast<int64_t>(sizeof(int64_t));
  }
  ptx::NumberedWord* words(size_t r) const {
    return reinterpret_cast<ptx::NumberedWord*>(of_rank[r] + 2 * buffer_bytes);
  }
  int64_t* flags(size_t r) const {
    return reinterpret_cast<int64_t*>(of_rank[r] + 2 * buffer_bytes + kBytesOfWords);
  }
  // The device of any rank of this process, and the calls of all.
  Device& home() const {
    return **std::ranges::find_if(devices, [](const Device* one) { return one != nullptr; });
  }
  // All GPUs, of ranks that are all of this process.
  std::vector<int> ordinals() const {
    std::vector<int> all;
    for (const Device* device : devices) all.push_back(device->info().ordinal);
    return all;
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
  std::unique_ptr<SymmetricRanks> symmetric;  // null with NCCL, and of a rank that is alone
  Buffer slots;                               // of NCCL, [world, buffer_bytes]
  std::mutex late_mutex;
  std::string late;                  // why NCCL was ended
  std::vector<Buffer> done, waited;  // [world]
  // Host memory that all kernels of this process reach.
  Buffer host;
  int64_t* stop = nullptr;
  PeerFault* faults = nullptr;  // [world]
  // Null: by windows. Its thread writes what stands above, so it goes first.
  std::unique_ptr<NcclGroup> nccl;
};

class DeviceRanks::Rank final : public Communicator {
 public:
  Rank(Windows& windows, ShardId id) : windows_(windows), id_(id) {}
  ShardId id() const override { return id_; }
  SymmetricMemory* symmetric() override {
    return has_symmetric() ? &windows_.symmetric->of(id_.rank) : nullptr;
  }

  void gather(std::span<const Gathered> tensors, const Place& place) override {
    std::vector<Part> parts;
    for (const Gathered& one : tensors) {
      Part part = one.by_rows() ? rows_of(one) : columns_of(one.all, one.ends);
      part.from = one.all.data + part.begin[rank()] * element(one.all);
      part.from_stride = one.all.row_stride() * element(one.all);
      if (has_symmetric() && windows_.symmetric->has(id_.rank, one.all.data))
        part.way = one.stored || one.stays ? Way::kStored : Way::kDirect;
      part.stays = one.stays;
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

  // A kernel that computes while it waits for a rank of its own GPU may keep that rank from the SMs
  // that it wants, so ranks that share a GPU have none.
  PeerWords inside(const TensorView& all, const ColumnEnds& ends, const Place& place) override {
    const int64_t item = element(all);
    if (id_.world == 1 || windows_.nccl != nullptr || windows_.turns != nullptr) return {};
    if (all.dim(0) * all.dim(1) * item > PeerWords::kMostBytes) return {};
    PeerWords words{.rank = id_.rank, .world = id_.world, .wait = wait(place)};
    for (size_t r = 0; r < world(); ++r) {
      const int64_t begin = first_column(ends, static_cast<int>(r));
      if (ends[r] == begin || (ends[r] - begin) * item % PeerWords::kBytes != 0) return {};
      words.end[r] = static_cast<int32_t>(ends[r]);
      words.words[r] = windows_.words(r);
    }
    return words;
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
  bool has_symmetric() const {
    return windows_.symmetric != nullptr && windows_.symmetric->complete();
  }
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

  // Divided by rows where the tensors are larger than a buffer; those in symmetric memory need
  // none.
  void exchange_all(std::vector<Part> parts, uint32_t receivers, const Place& place) {
    if (id_.world == 1) return;
    DSV4_CHECK(parts.size() <= exchange::kMaxTensors, "{}: {} tensors, at most {}",
               to_string(place), parts.size(), exchange::kMaxTensors);
    int64_t rows = 0, row_bytes = 0, bytes = 0;
    for (const Part& part : parts) {
      rows = std::max(rows, part.all.dim(0));
      row_bytes += align_up(part.row_bytes(), kAlign);
      bytes += align_up(part.all.dim(0) * part.row_bytes(), kAlign);
    }
    const auto is_symmetric = [](const Part& part) { return part.way != Way::kWindow; };
    const bool symmetric = std::ranges::any_of(parts, is_symmetric);
    DSV4_CHECK(!symmetric || std::ranges::all_of(parts, is_symmetric),
               "{}: tensors in symmetric memory and others", to_string(place));
    DSV4_CHECK(symmetric || row_bytes <= windows_.buffer_bytes,
               "{}: a row of {} bytes, and a window of {}", to_string(place), row_bytes,
               windows_.buffer_bytes);
    cuda_check(cudaSetDevice(device().info().ordinal), "cudaSetDevice");
    const bool moves = !std::ranges::all_of(parts, &Part::stays);
    const int64_t granule = exchange::granule_of(parts);
    const bool words = !symmetric && windows_.nccl == nullptr && receivers == ~0u &&
                       bytes <= windows_.buffer_bytes && exchange::by_words(parts, granule, bytes);
    const int64_t unit = std::min(exchange::unit_of(parts, granule),
                                  words ? exchange::kWordBytes : exchange::kAlign);
    const int64_t step = symmetric || words ? rows : windows_.buffer_bytes / row_bytes;
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
        send(params, unit, window, moves ? windows_.ctas : 1);
    }
    if (in_step_) windows_.turns->pass(id_.rank);
  }

  // bytes: of the tensors in a window, or in a slot
  void send(ExchangeParams& params, int64_t unit, int64_t bytes, int ctas) {
    if (windows_.nccl == nullptr) return exchange::launch_exchange(device(), ctas, params, unit);
    params.windows[rank()] = reinterpret_cast<unsigned char*>(windows_.slots.view().data);
    params.buffer_bytes = bytes;
    exchange::launch_slots(device(), params, unit, true);
    windows_.nccl->all_gather(params.windows[rank()], bytes, device().stream());
    if ((params.receivers >> id_.rank & 1) != 0)
      exchange::launch_slots(device(), params, unit, false);
  }

  PeerWait wait(const Place& place) const {
    return {.done = windows_.done[rank()].as<int64_t>(),
            .waited = windows_.waited[rank()].as<int64_t>(),
            .stop = windows_.stop,
            .fault = windows_.faults + id_.rank,
            .limit_ns = windows_.limit_ns,
            .what = place.what,
            .layer = place.layer};
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
                          .distance = {},
                          .flags = {},
                          .buffer_bytes = windows_.buffer_bytes,
                          .wait = wait(place)};
    for (size_t r = 0; r < world(); ++r) {
      params.windows[r] = windows_.of_rank[r];
      params.words[r] = windows_.words(r);
      params.flags[r] = windows_.flags(r);
      if (has_symmetric())
        params.distance[r] = windows_.symmetric->distance(id_.rank, static_cast<int>(r));
    }
    return params;
  }

  Device& device() const { return *windows_.devices[rank()]; }

  Windows& windows_;
  ShardId id_;
  bool in_step_ = false;  // of turns
};

}  // namespace dsv4
