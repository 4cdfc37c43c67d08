#include "apps/kv_events.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/base/thread.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostWaiting = 100'000;  // events
constexpr size_t kMostInBatch = 256;      // events
constexpr uint64_t kEnd = ~uint64_t{0};   // the number after the last batch of a replay

const char* medium_of(CacheTier tier) {
  switch (tier) {
    case CacheTier::kEngine:
      return "GPU";  // the engine's own memory, also where it computes on the CPU
    case CacheTier::kRam:
      return "CPU";
    case CacheTier::kDisk:
      return "DISK";
  }
  return "GPU";
}

Json json_of(const BlockEvent& event) {
  const char* medium = medium_of(event.tier);
  switch (event.kind) {
    case BlockEvent::Kind::kStored:
      return {"BlockStored", event.blocks, event.parent ? Json(*event.parent) : Json(),
              event.ids,     event.step,   nullptr,
              medium,        nullptr};
    case BlockEvent::Kind::kRemoved:
      return {"BlockRemoved", event.blocks, medium};
    case BlockEvent::Kind::kCleared:
      return Json::array({"AllBlocksCleared"});
  }
  return {};
}

std::string big_endian(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[7 - i] = static_cast<char>(number >> (8 * i));
  return bytes;
}

}  // namespace

std::string encode_kv_events(double time, const std::vector<BlockEvent>& events) {
  Json list = Json::array();
  for (const BlockEvent& event : events) list.push_back(json_of(event));
  std::string bytes;
  Json::to_msgpack(Json::array({time, std::move(list), 0}), bytes);
  return bytes;
}

// The sender's name, an empty frame, 8 bytes.
std::optional<uint64_t> replay_start(const std::vector<std::string>& frames) {
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return std::nullopt;
  uint64_t number = 0;
  for (const char byte : frames[2]) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

KvEventPublisher::KvEventPublisher(const KvEventOptions& options)
    : options_(options),
      pub_(context_, ZMQ_PUB, options.endpoint, "--kv-events"),
      replay_(options.replay_endpoint.empty()
                  ? nullptr
                  : std::make_unique<ZmqSocket>(context_, ZMQ_ROUTER, options.replay_endpoint,
                                                "--kv-events-replay")),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_(start_thread("the thread of the KV events", [this] { run(); })) {
}

KvEventPublisher::~KvEventPublisher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
}

void KvEventPublisher::add(BlockEvent event) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.events;
    // The number of a batch that is never sent shows subscribers that some were lost.
    if (waiting_.size() >= kMostWaiting) return void(++counts_.lost);
    waiting_.push_back(std::move(event));
  }
  eventfd_write(wake_, 1);
}

KvEventPublisher::Counts KvEventPublisher::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void KvEventPublisher::run() {
  const ZmqLibrary& zmq = context_.library();
  for (;;) {
    zmq_pollitem_t items[] = {{nullptr, wake_, ZMQ_POLLIN, 0},
                              {replay_ ? replay_->get() : nullptr, 0, ZMQ_POLLIN, 0}};
    zmq.poll(items, replay_ ? 2 : 1, -1);
    eventfd_t ignored = 0;
    eventfd_read(wake_, &ignored);
    std::vector<BlockEvent> events;
    bool stopping = false;
    int64_t lost = 0;
    {
      const std::lock_guard lock(mutex_);
      events = std::exchange(waiting_, {});
      stopping = stopping_;
      lost = counts_.lost;
    }
    publish(std::move(events));
    if (lost > lost_) ++next_;
    lost_ = lost;
    if (replay_) replay();
    if (stopping) return;
  }
}

void KvEventPublisher::publish(std::vector<BlockEvent> events) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (size_t begin = 0; begin < events.size(); begin += kMostInBatch) {
    const size_t end = std::min(begin + kMostInBatch, events.size());
    const std::vector<BlockEvent> some(
        std::make_move_iterator(events.begin() + static_cast<std::ptrdiff_t>(begin)),
        std::make_move_iterator(events.begin() + static_cast<std::ptrdiff_t>(end)));
    std::string batch = encode_kv_events(now, some);
    pub_.send({options_.topic, big_endian(next_), batch});
    kept_bytes_ += batch.size();
    kept_.emplace_back(next_++, std::move(batch));
    while (kept_.size() > options_.kept_batches || kept_bytes_ > options_.kept_bytes) {
      kept_bytes_ -= kept_.front().second.size();
      kept_.pop_front();
    }
    const std::lock_guard lock(mutex_);
    ++counts_.batches;
  }
}

// Answers every request that is there.
void KvEventPublisher::replay() {
  for (;;) {
    const std::vector<std::string> frames = replay_->receive();
    if (frames.empty()) return;
    const std::optional<uint64_t> start = replay_start(frames);
    if (!start) continue;
    const std::string& client = frames[0];
    for (const auto& [number, batch] : kept_)
      if (number >= *start) replay_->send({client, "", big_endian(number), batch});
    replay_->send({client, "", big_endian(kEnd), ""});
    const std::lock_guard lock(mutex_);
    ++counts_.replays;
  }
}

}  // namespace dsv4::apps
