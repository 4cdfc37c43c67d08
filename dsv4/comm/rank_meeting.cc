#include "dsv4/comm/rank_meeting.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "dsv4/comm/threads.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum Kind : uint32_t { kHello = 1, kWelcome, kRefused };

constexpr uint32_t kProtocol = 2;
constexpr size_t kMostHello = size_t{16} << 10;  // bytes
constexpr milliseconds kShort{500};              // to say to a rank that all stop
constexpr milliseconds kRestart{15000};          // until the rank 0 of a job before has gone
constexpr milliseconds kBetweenLooks{10};

// Names of sockets have a length; a hash makes the job's differ from others'.
std::string socket_name(const LaunchedRank& self) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : self.meeting) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("dsv4-ranks-{}-{:016x}", geteuid(), hash);
}

void refuse(RankSocket& socket, const std::string& line) {
  try {
    if (socket.open()) socket.send(kRefused, MessageWriter().text(line).bytes(), kShort, "");
  } catch (const Error&) {  // it has ended
  }
}

class Meeting {
 public:
  Meeting(ShardId id, const RankIdentity& identity)
      : id_(id), identity_(identity), peers_(static_cast<size_t>(id.world)) {}

  std::vector<RankSocket> run(RankSocket listener, milliseconds wait, milliseconds limit) {
    const auto deadline = Clock::now() + wait;
    try {
      while (arrived_ < id_.world) {
        const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
        if (left <= milliseconds(0)) fail_missing(wait, listener);
        if (auto socket = listener.accept(silent_.empty() ? left : std::min(left, kBetweenLooks)))
          silent_.push_back(std::move(*socket));
        hear();
      }
    } catch (const Error& error) {
      for (std::vector<RankSocket>* sockets : {&peers_, &silent_})
        for (RankSocket& socket : *sockets) refuse(socket, error.what());
      throw;
    }
    for (int rank = 1; rank < id_.world; ++rank) peer(rank).send(kWelcome, {}, limit, "welcome");
    return std::move(peers_);
  }

 private:
  RankSocket& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  // Takes every hello that has arrived by now, and waits for none.
  void hear() {
    std::vector<RankSocket> silent;
    for (RankSocket& socket : std::exchange(silent_, {})) {
      const RankSocket::Arrived arrived = socket.arrived(kMostHello);
      if (arrived == RankSocket::Arrived::kMessage) take(std::move(socket));
      if (arrived == RankSocket::Arrived::kNothingYet) silent.push_back(std::move(socket));
    }
    silent_ = std::move(silent);
  }

  void take(RankSocket socket) {
    const RankSocket::Message message = socket.receive(milliseconds(0), "hello");
    if (message.kind != kHello) return;
    const RankHello hello = get_hello(message.bytes, identity_);
    std::string line = difference(hello, id_, identity_);
    if (line.empty() && peer(hello.id.rank).open())
      line = fmt::format("two processes are rank {}", hello.id.rank);
    if (!line.empty()) {
      refuse(socket, line);
      fail(ErrorCode::kUnsupported, line);
    }
    socket.set_peer(hello.id.rank);
    peer(hello.id.rank) = std::move(socket);
    ++arrived_;
  }

  [[noreturn]] void fail_missing(milliseconds wait, const RankSocket& listener) const {
    std::string missing;
    for (int rank = 1; rank < id_.world; ++rank)
      if (!peers_[static_cast<size_t>(rank)].open())
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    const std::string trouble = listener.trouble();
    fail(ErrorCode::kUnsupported, "{} of {} ranks came within {} s; missing: {}{}", arrived_,
         id_.world, static_cast<double>(wait.count()) / 1000, missing,
         trouble.empty() ? "" : fmt::format(" (rank 0 cannot accept them: {})", trouble));
  }

  const ShardId id_;
  const RankIdentity& identity_;
  std::vector<RankSocket> peers_;   // [world]
  std::vector<RankSocket> silent_;  // processes that have not said yet what they are
  int arrived_ = 1;
};

std::vector<RankSocket> connect_to_root(const std::string& name, ShardId id,
                                        const RankIdentity& identity, milliseconds wait,
                                        milliseconds limit) {
  std::optional<RankSocket> socket = RankSocket::connect(name, 0, wait);
  if (!socket)
    fail(ErrorCode::kUnsupported, "rank {} found no rank 0 within {} s", id.rank,
         static_cast<double>(wait.count()) / 1000);
  socket->send(kHello, put_hello(id, identity), wait, "hello");
  const RankSocket::Message message = socket->receive(wait + limit, "the other ranks come");
  if (message.kind != kWelcome) fail(ErrorCode::kUnsupported, MessageReader(message.bytes).text());
  std::vector<RankSocket> sockets(static_cast<size_t>(id.world));
  sockets.front() = std::move(*socket);
  return sockets;
}

}  // namespace

Bytes put_hello(ShardId id, const RankIdentity& identity) {
  MessageWriter hello;
  hello.put(kProtocol).text(identity.program).put(id).text(identity.model).text(identity.processor);
  return hello.bytes();
}

RankHello get_hello(const Bytes& bytes, const RankIdentity& own) {
  MessageReader reader(bytes);
  RankHello hello;
  hello.protocol = reader.get<uint32_t>();
  hello.identity.program = reader.text();
  // What follows is not the same in every program.
  if (hello.protocol != kProtocol || hello.identity.program != own.program) return hello;
  hello.id = reader.get<ShardId>();
  hello.identity.model = reader.text();
  hello.identity.processor = reader.text();
  reader.end();
  return hello;
}

std::string difference(const RankHello& hello, ShardId own, const RankIdentity& identity) {
  const RankIdentity& other = hello.identity;
  if (hello.protocol != kProtocol || other.program != identity.program)
    return fmt::format("a rank runs {}, rank 0 {}", other.program, identity.program);
  const ShardId id = hello.id;
  if (id.world != own.world)
    return fmt::format("rank {} is one of {} ranks, rank 0 of {}", id.rank, id.world, own.world);
  if (id.rank < 1 || id.rank >= own.world) return fmt::format("two processes are rank {}", id.rank);
  if (other.model != identity.model)
    return fmt::format("rank {} has the model {}, rank 0 {}", id.rank, other.model, identity.model);
  if (other.processor != identity.processor)
    return fmt::format(
        "rank {} computes on {}, rank 0 on {}: ranks agree bit for bit on processors of one kind "
        "only",
        id.rank, other.processor, identity.processor);
  return "";
}

std::vector<RankSocket> connect_ranks(const LaunchedRank& self, const RankIdentity& identity,
                                      milliseconds wait, milliseconds limit) {
  const std::string name = socket_name(self);
  if (self.id.rank != 0) return connect_to_root(name, self.id, identity, wait, limit);
  Meeting meeting(self.id, identity);
  if (self.id.world == 1) return std::vector<RankSocket>(1);
  return meeting.run(RankSocket::listen(name, std::min(wait, kRestart)), wait, limit);
}

}  // namespace dsv4
