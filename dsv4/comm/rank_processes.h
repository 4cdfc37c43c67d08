// The ranks of a model as processes of one host (docs/adr/0037): they meet, compare what they are,
// and from then on rank 0 sends the others what to do, through one socket for each of them.
//
//   rank r   hello: program, model, processor, world, rank   ->   rank 0
//   rank r   welcome, or the line with which all end         <-   rank 0
//   rank r   what to do, values of exchanges, end            <-   rank 0
//   rank r   what it was asked for, values, why it stops     ->   rank 0
//   rank r   has closed what it had opened of others         ->   rank 0, after the end
//   rank r   all have: it may free what it had offered       <-   rank 0
//
// Any rank that fails says so and ends; a process that is killed is noticed by its socket. Either
// way every call of the others throws RanksStopped. exchanges() moves values in host memory through
// the same sockets, by way of rank 0: for tests, not for speed. Values in memory of GPUs go from
// GPU to GPU (device_ranks.h); swap() brings the ranks what they need for that.

#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/comm/communicator.h"
#include "dsv4/comm/rank_meeting.h"
#include "dsv4/comm/rank_watch.h"

namespace dsv4 {

class DeviceRanks;  // device_ranks.h

// How GPUs of ranks that are processes exchange values: by stores in each other's memory, or by
// NCCL, where they do not reach it. Set before the ranks meet, equal on all of them.
enum class ExchangeKind : uint8_t { kPeer, kNccl };
void set_exchange_kind(ExchangeKind kind);
ExchangeKind exchange_kind();

class RankProcesses {
 public:
  // Meets the others within `wait`. Throws kUnsupported on every rank, with one line, when some do
  // not come or are not equal to rank 0.
  RankProcesses(const LaunchedRank& self, const RankIdentity& identity,
                std::chrono::milliseconds wait);
  // On rank 0 the others end. A group that goes because of an exception leaves it to
  // tell_other_ranks() to say why.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  ShardId id() const { return id_; }
  // How long a rank is waited for that the others have to wait for.
  void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }

  // Kinds of the caller's messages begin here.
  static constexpr uint32_t kFirstKind = 16;
  using Message = RankSocket::Message;

  // Rank 0: to all others.
  void tell(uint32_t kind, const Bytes& bytes);
  // Rank 0: the next message of a rank, which has to be of this kind. doing: for errors
  Bytes answer(int rank, uint32_t kind, const std::string& doing);
  // How long next() looks for a message before it sleeps (rank_team.h).
  void stay_awake(std::chrono::milliseconds awake) { awake_ = awake; }
  // Other ranks: the next message of rank 0, whenever it comes; none: rank 0 has come to its end.
  // meanwhile(): called now and then. It may throw RanksStopped.
  std::optional<Message> next(const std::function<void()>& meanwhile = [] {});
  // Other ranks: to rank 0.
  void reply(uint32_t kind, const Bytes& bytes);
  // Says why this rank stops, to rank 0 or to all others. Calls after it throw RanksStopped.
  void abort(const std::string& why);
  // For a handler of any exception of std: all ranks stop because of it, or of what another rank
  // failed of, where that is known within `wait`. Throws what says so, of the type that was thrown.
  [[noreturn]] void stop_all(std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // Other ranks, after the end that next() gave: waits until no rank uses memory of another one.
  void leave();
  // Throws RanksStopped when another process has ended.
  void check() const;
  // What another rank failed of, or that its process has ended, where that is known within `wait`;
  // else `otherwise`. Calls after it throw RanksStopped.
  std::string reason(const std::string& otherwise,
                     std::chrono::milliseconds wait = std::chrono::milliseconds(0));
  // Gives these bytes to all ranks and returns those of each, [world]. All ranks call it; however
  // long the others take.
  std::vector<Bytes> swap(const Bytes& own, const std::string& doing);
  // ended(): called once, by a thread, when another process ends or stops.
  void on_end(std::function<void()> ended);
  // close(): called once, when all ranks have come to their end and before any of them frees what
  // it had offered: closes what this rank has opened of others.
  void on_close(std::function<void()> close) { close_ = std::move(close); }

  // In host memory, by this rank.
  Communicator& exchanges() { return *exchanges_; }
  // In memory of GPUs: kept here, because what processes have opened of each other is to be closed
  // when all of them end, not with a runner.
  std::shared_ptr<DeviceRanks>& device_exchanges() { return device_exchanges_; }

 private:
  class Exchanges;
  Bytes receive(int rank, uint32_t kind, RankLimit limit, const std::string& doing);
  RankSocket& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void check_works() const;
  // Rank 0: lets the others end, and waits until they use nothing of this rank.
  void end_others() noexcept;
  // Why another rank stopped, if it said so before it ended.
  std::optional<std::string> last_words();
  // body(), whose end by another rank is the end of all further calls.
  template <class Body>
  auto stopping(const Body& body);

  ShardId id_;
  std::chrono::milliseconds limit_{10000}, awake_{0};
  std::vector<RankSocket> peers_;  // [world]; rank 0: of the others; they: of rank 0 alone
  std::unique_ptr<Communicator> exchanges_;
  std::string why_;    // not empty: stopped
  bool said_ = false;  // the others know
  bool left_ = false;
  const int exceptions_ = std::uncaught_exceptions();
  std::function<void()> close_;
  std::shared_ptr<DeviceRanks> device_exchanges_;
  std::unique_ptr<RankWatch> watch_;  // of peers_
};

// Says "rank N: why" to the others of every group that an exception has taken away: for whoever
// catches that exception. Without it they end when this process does, and do not know why.
void tell_other_ranks(const std::string& why);

}  // namespace dsv4
