// A communicator that counts: what a rank receives of the others, and the time of its exchanges.
// On the host an exchange returns when the values are there, so that is mostly time of waiting. On
// a GPU it is only enqueued; its kernels count how long they wait (exchange.cuh).

#pragma once

#include <atomic>
#include <chrono>

#include "dsv4/comm/communicator.h"
#include "dsv4/device/peer_words.h"

namespace dsv4 {

// One rank adds to it in exchanges. Other threads may read.
struct ExchangeCounts {
  std::atomic<int64_t> received_bytes{0};
  std::atomic<int64_t> nanoseconds{0};
};

class Metered final : public Communicator {
 public:
  Metered(Communicator& inner, ExchangeCounts& counts) : inner_(inner), counts_(counts) {}
  ShardId id() const override { return inner_.id(); }
  SymmetricMemory* symmetric() override { return inner_.symmetric(); }

  void gather(std::span<const Gathered> tensors, const Place& place) override {
    const Timer timer(counts_);
    inner_.gather(tensors, place);
    for (const Gathered& tensor : tensors)
      counts_.received_bytes += received_bytes(tensor, id().rank);
  }
  PeerWords inside(const TensorView& all, const ColumnEnds& ends, const Place& place) override {
    const PeerWords words = inner_.inside(all, ends, place);
    if (!words.empty()) counts_.received_bytes += received_bytes({all, ends}, id().rank);
    return words;
  }
  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override {
    const Timer timer(counts_);
    inner_.to_root(part, all, ends, place);
    if (id().rank == 0) counts_.received_bytes += received_bytes({all, ends}, 0);
  }
  // Every row counts as if another rank owned it: on a GPU the owners are known there only.
  void gather_rows(const TensorView& all, const ConstTensorView& owners,
                   const Place& place) override {
    const Timer timer(counts_);
    inner_.gather_rows(all, owners, place);
    counts_.received_bytes += all.bytes();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Timer {
    explicit Timer(ExchangeCounts& c) : counts(c) {}
    ~Timer() {
      const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
      counts.nanoseconds += spent.count();
    }
    ExchangeCounts& counts;
    const Clock::time_point begin = Clock::now();
  };

  Communicator& inner_;
  ExchangeCounts& counts_;
};

}  // namespace dsv4
