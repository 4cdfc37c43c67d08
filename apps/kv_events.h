// KvEventPublisher: what the cache stores and forgets, to routers over ZeroMQ, in the form of
// vLLM's KV events (docs/clusters.md, docs/adr/0033).
//
//   PUB     topic, number of the batch (8 bytes, big-endian), batch
//   ROUTER  a number -> every batch from that one on that is still kept, then number -1
//
//   batch   [time, [event, ...], 0]                                           (msgpack)
//   event   ["BlockStored", hashes, parent, token ids, block size, lora id, medium, lora name]
//           ["BlockRemoved", hashes, medium]    ["AllBlocksCleared"]
//
// The cache hands its events over and goes on; a thread writes and sends them. Nothing waits for a
// subscriber: one that is slow loses batches, sees a gap in their numbers, and requests them again.

#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/zmq.h"
#include "dsv4/cache/block_events.h"

namespace dsv4::apps {

struct KvEventOptions {
  std::string endpoint;         // of the PUB socket, as tcp://*:5557
  std::string replay_endpoint;  // of the ROUTER socket; empty: no replay
  std::string topic;
  size_t kept_batches = 10'000;          // for replays
  size_t kept_bytes = size_t{64} << 20;  // of them
};

// One batch as bytes.
std::string encode_kv_events(double time, const std::vector<BlockEvent>& events);

// The number that a request for a replay begins with; nothing where the frames are no request.
// frames: as a ROUTER receives them, the sender's name first.
std::optional<uint64_t> replay_start(const std::vector<std::string>& frames);

class KvEventPublisher {
 public:
  // Throws kUnsupported without libzmq, and kIo where an endpoint cannot be used.
  explicit KvEventPublisher(const KvEventOptions& options);
  ~KvEventPublisher();  // after what was handed over

  // Any thread.
  void add(BlockEvent event);
  std::string endpoint() const { return pub_.endpoint(); }
  std::string replay_endpoint() const { return replay_ ? replay_->endpoint() : ""; }
  struct Counts {
    int64_t events = 0, batches = 0, replays = 0;
    int64_t lost = 0;  // events that came faster than they were sent
  };
  Counts counts() const;

 private:
  void run();
  void publish(std::vector<BlockEvent> events);
  void replay();

  const KvEventOptions options_;
  ZmqContext context_;
  ZmqSocket pub_;
  std::unique_ptr<ZmqSocket> replay_;
  const int wake_;  // an eventfd, so that one wait is for events and for requests

  mutable std::mutex mutex_;
  std::vector<BlockEvent> waiting_;
  bool stopping_ = false;
  Counts counts_;

  // The thread's.
  uint64_t next_ = 0;  // number of the next batch
  std::deque<std::pair<uint64_t, std::string>> kept_;
  size_t kept_bytes_ = 0;
  int64_t lost_ = 0;  // events, as far as their gap was made

  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace dsv4::apps
