#include "dsv4/comm/rank_socket.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "dsv4/comm/threads.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // of a message
constexpr uint32_t kMagic = 0x34767364;             // "dsv4"
constexpr milliseconds kBetweenTries{20};
constexpr size_t kTogether = size_t{64} << 10;  // bytes that are written with the header

struct Header {
  uint32_t magic, kind;
  uint64_t bytes;
};

struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// The first byte is 0: a name in no folder.
Address address_of(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  DSV4_CHECK(name.size() + 1 < sizeof result.address.sun_path, "a socket's name of {} bytes",
             name.size());
  std::copy(name.begin(), name.end(), result.address.sun_path + 1);
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

int new_socket() {
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0)
    fail(ErrorCode::kIo, "no socket for the ranks: {}", std::generic_category().message(errno));
  return descriptor;
}

// Abstract names know no permissions.
bool is_of_this_user(int descriptor) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == geteuid();
}

// Milliseconds until the deadline, for poll().
int left(const std::optional<Clock::time_point>& deadline) {
  if (!deadline) return -1;
  const auto time = std::chrono::ceil<milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(time, 0, 1 << 30));
}

}  // namespace

RankSocket::~RankSocket() {
  close();
}

void RankSocket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

RankSocket RankSocket::listen(const std::string& name, milliseconds wait) {
  RankSocket listener(new_socket(), 0);
  const Address at = address_of(name);
  const auto deadline = Clock::now() + wait;
  while (bind(listener.descriptor_, reinterpret_cast<const sockaddr*>(&at.address), at.bytes) !=
         0) {
    if (errno != EADDRINUSE || Clock::now() > deadline)
      fail(ErrorCode::kResource, "another rank 0 of this job runs on this host ({}): {}", name,
           std::generic_category().message(errno));
    std::this_thread::sleep_for(kBetweenTries);
  }
  if (::listen(listener.descriptor_, SOMAXCONN) != 0)
    fail(ErrorCode::kIo, "cannot listen for the ranks: {}", std::generic_category().message(errno));
  return listener;
}

std::optional<RankSocket> RankSocket::accept(milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  do {
    pollfd wait{.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, left(deadline)) == 0) return std::nullopt;
    const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    accept_error_ = descriptor < 0 ? errno : 0;
    if (descriptor >= 0) {
      RankSocket accepted(descriptor, -1);
      if (is_of_this_user(descriptor)) return accepted;
    } else if (errno != EAGAIN && errno != EINTR) {
      // Without a descriptor for it the connection stays, and poll() returns at once.
      std::this_thread::sleep_for(std::min(kBetweenTries, milliseconds(left(deadline))));
    }
  } while (Clock::now() < deadline);
  return std::nullopt;
}

std::string RankSocket::trouble() const {
  return accept_error_ == 0 ? "" : std::generic_category().message(accept_error_);
}

std::optional<RankSocket> RankSocket::connect(const std::string& name, int peer,
                                              milliseconds limit) {
  const Address at = address_of(name);
  const auto deadline = Clock::now() + limit;
  do {
    RankSocket socket(new_socket(), peer);
    if (::connect(socket.descriptor_, reinterpret_cast<const sockaddr*>(&at.address), at.bytes) ==
            0 &&
        is_of_this_user(socket.descriptor_))
      return socket;
    std::this_thread::sleep_for(kBetweenTries);
  } while (Clock::now() < deadline);
  return std::nullopt;
}

void RankSocket::has_ended() const {
  throw RanksStopped(fmt::format("rank {} has ended", peer_));
}

void RankSocket::wait_for(short events, Deadline deadline, RankLimit limit,
                          const std::string& doing) const {
  pollfd wait{.fd = descriptor_, .events = events, .revents = 0};
  const int ready = poll(&wait, 1, left(deadline));
  if (ready != 0 || !deadline || Clock::now() < *deadline) return;
  throw RanksStopped(fmt::format("no answer from rank {} for {} s ({})", peer_,
                                 static_cast<double>(limit->count()) / 1000, doing));
}

void RankSocket::read(void* to, size_t bytes, Deadline deadline, RankLimit limit,
                      const std::string& doing) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(descriptor_, at, bytes, 0);
    if (got == 0) has_ended();
    if (got < 0 && errno != EAGAIN && errno != EINTR) has_ended();
    if (got < 0) {
      wait_for(POLLIN, deadline, limit, doing);
      continue;
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

void RankSocket::write(const void* from, size_t bytes, Deadline deadline, RankLimit limit,
                       const std::string& doing) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t done = ::send(descriptor_, at, bytes, MSG_NOSIGNAL);
    if (done < 0 && errno != EAGAIN && errno != EINTR) has_ended();
    if (done < 0) {
      wait_for(POLLOUT, deadline, limit, doing);
      continue;
    }
    at += done;
    bytes -= static_cast<size_t>(done);
  }
}

void RankSocket::send(uint32_t kind, const Bytes& bytes, RankLimit limit,
                      const std::string& doing) {
  const Deadline deadline = limit ? Deadline(Clock::now() + *limit) : std::nullopt;
  const Header header{kMagic, kind, bytes.size()};
  // The other process wakes up once for a step, when all of its plan is there.
  std::vector<std::byte> first(sizeof header + std::min(bytes.size(), kTogether));
  std::memcpy(first.data(), &header, sizeof header);
  const size_t begin = first.size() - sizeof header;
  std::copy_n(bytes.begin(), begin, first.begin() + sizeof header);
  write(first.data(), first.size(), deadline, limit, doing);
  write(bytes.data() + begin, bytes.size() - begin, deadline, limit, doing);
}

RankSocket::Message RankSocket::receive(RankLimit limit, const std::string& doing) {
  const Deadline deadline = limit ? Deadline(Clock::now() + *limit) : std::nullopt;
  Header header{};
  read(&header, sizeof header, deadline, limit, doing);
  if (header.magic != kMagic || header.bytes > kMostBytes)
    fail(ErrorCode::kBadInput, "rank {} sent something that is no message ({})", peer_, doing);
  Message message{.kind = header.kind, .bytes = Bytes(header.bytes)};
  read(message.bytes.data(), message.bytes.size(), deadline, limit, doing);
  return message;
}

RankSocket::Arrived RankSocket::arrived(size_t most_bytes) const {
  Header header{};
  const ssize_t got = recv(descriptor_, &header, sizeof header, MSG_PEEK);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return Arrived::kNoMessage;
  const Arrived incomplete = ended() ? Arrived::kNoMessage : Arrived::kNothingYet;
  if (got < static_cast<ssize_t>(sizeof header)) return incomplete;
  if (header.magic != kMagic || header.bytes > most_bytes) return Arrived::kNoMessage;
  int bytes = 0;
  if (ioctl(descriptor_, FIONREAD, &bytes) != 0) return Arrived::kNoMessage;
  return static_cast<size_t>(bytes) < sizeof header + header.bytes ? incomplete : Arrived::kMessage;
}

bool RankSocket::readable(milliseconds limit) const {
  pollfd wait{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return poll(&wait, 1, static_cast<int>(limit.count())) > 0;
}

void RankSocket::finish() {
  shutdown(descriptor_, SHUT_WR);  // may fail where the other process has ended
}

bool RankSocket::ended() const {
  pollfd wait{.fd = descriptor_, .events = POLLRDHUP, .revents = 0};
  return poll(&wait, 1, 0) > 0 && (wait.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace dsv4
