// A connection between two processes of one host: rank 0 and another rank. Unix sockets with names
// that are no files: they need no address and no port, nothing of them stays behind, and no other
// user gets in.
//
// Nothing waits for ever, except receive() without a limit: it ends when the other process does.
// What ends a call throws RanksStopped (threads.h), with the rank in the text.

#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dsv4/comm/message.h"

namespace dsv4 {

using RankLimit = std::optional<std::chrono::milliseconds>;  // none: no limit

class RankSocket {
 public:
  RankSocket() = default;
  RankSocket(int descriptor, int peer) : descriptor_(descriptor), peer_(peer) {}
  RankSocket(RankSocket&& other) noexcept { swap(other); }
  RankSocket& operator=(RankSocket&& other) noexcept {
    swap(other);
    return *this;
  }
  ~RankSocket();

  // Listens at a name; throws kResource when another process of this host does. wait: for it to end
  static RankSocket listen(const std::string& name, std::chrono::milliseconds wait);
  // The next process of this user that connects; none within the limit.
  std::optional<RankSocket> accept(std::chrono::milliseconds limit);
  // Why the system gave the last accept() no connection though there is one; empty: it did.
  std::string trouble() const;
  // Tries again until the limit; then none.
  static std::optional<RankSocket> connect(const std::string& name, int peer,
                                           std::chrono::milliseconds limit);

  bool open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void set_peer(int rank) { peer_ = rank; }

  struct Message {
    uint32_t kind = 0;
    Bytes bytes;
  };
  // doing: for errors, "gather h, layer 17"
  void send(uint32_t kind, const Bytes& bytes, RankLimit limit, const std::string& doing);
  Message receive(RankLimit limit, const std::string& doing);
  // What has come, without waiting: a whole message, the beginning of one or nothing, or something
  // that is no message of at most so many bytes, as is the end of the other process.
  enum class Arrived { kMessage, kNothingYet, kNoMessage };
  Arrived arrived(size_t most_bytes) const;
  // There is something to receive, or the end of the other process, within the limit.
  bool readable(std::chrono::milliseconds limit) const;
  // Sends nothing more: ended() of the other process, after what was sent has arrived.
  void finish();
  // The other process has ended, or sends nothing more.
  bool ended() const;
  void close();

 private:
  void swap(RankSocket& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(peer_, other.peer_);
    std::swap(accept_error_, other.accept_error_);
  }
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  void wait_for(short events, Deadline deadline, RankLimit limit, const std::string& doing) const;
  [[noreturn]] void has_ended() const;
  void read(void* to, size_t bytes, Deadline deadline, RankLimit limit, const std::string& doing);
  void write(const void* from, size_t bytes, Deadline deadline, RankLimit limit,
             const std::string& doing);

  int descriptor_ = -1, peer_ = 0;
  int accept_error_ = 0;  // errno
};

}  // namespace dsv4
