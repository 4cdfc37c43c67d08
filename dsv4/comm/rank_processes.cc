#include "dsv4/comm/rank_processes.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "dsv4/base/not_finite.h"
#include "dsv4/comm/threads.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Kinds before these are of rank_meeting.cc.
enum Kind : uint32_t { kStop = 4, kEnd, kValues, kAllValues, kGiven, kAllGiven, kClosed, kFree };

constexpr milliseconds kShort{500};     // to say to a rank that all stop
constexpr milliseconds kToClose{5000};  // at the end, what a rank has opened of others
constexpr milliseconds kNowAndThen{250}, kBetweenLooks{20};

// Connections of groups that an exception has taken away.
struct Unsaid {
  int rank;
  std::vector<RankSocket> peers;
};
std::mutex unsaid_mutex;
std::vector<Unsaid> unsaid;

void say_stop(std::vector<RankSocket>& peers, const std::string& why) {
  for (RankSocket& socket : peers) {
    try {
      if (!socket.open()) continue;
      socket.send(kStop, MessageWriter().text(why).bytes(), kShort, "stop");
      socket.finish();
    } catch (const Error&) {  // it has ended
    }
  }
}

// Rows of some columns, without gaps.
void put_columns(MessageWriter& to, const ConstTensorView& from) {
  const auto bytes = static_cast<size_t>(from.dim(1) * item_bytes(from.dtype));
  for (int64_t i = 0; i < from.dim(0); ++i)
    to.raw(from.data + i * from.row_stride() * item_bytes(from.dtype), bytes);
}

void get_columns(MessageReader& from, const TensorView& to) {
  const auto bytes = static_cast<size_t>(to.dim(1) * item_bytes(to.dtype));
  for (int64_t i = 0; i < to.dim(0); ++i) {
    const std::byte* const row = from.raw(bytes);
    if (bytes > 0) std::memcpy(to.data + i * to.row_stride() * item_bytes(to.dtype), row, bytes);
  }
}

// Where a rank is, and the shape that it brings: compared before its values are read.
void put_place(MessageWriter& to, const Place& place, const TensorView& all) {
  to.text(place.what).put(place.layer).put(all.dim(0)).put(all.dtype);
}

void check_place(MessageReader& from, int rank, const Place& place, const TensorView& all) {
  const std::string what = from.text();
  const auto layer = from.get<int64_t>();
  DSV4_CHECK(what == place.what && layer == place.layer, "rank {} is at \"{}\", rank 0 at \"{}\"",
             rank, to_string(Place{what.c_str(), layer}), to_string(place));
  const auto rows = from.get<int64_t>();
  const auto dtype = from.get<DType>();
  DSV4_CHECK(rows == all.dim(0) && dtype == all.dtype, "{}: rank {} brings {} rows, rank 0 {}",
             to_string(place), rank, rows, to_string(all));
}

}  // namespace

static ExchangeKind& kind_of_exchanges() {
  static ExchangeKind kind = ExchangeKind::kPeer;
  return kind;
}

void set_exchange_kind(ExchangeKind kind) {
  kind_of_exchanges() = kind;
}

ExchangeKind exchange_kind() {
  return kind_of_exchanges();
}

template <class Body>
auto RankProcesses::stopping(const Body& body) {
  check_works();
  try {
    return body();
  } catch (const RanksStopped& stopped) {
    why_ = last_words().value_or(stopped.what());
    throw RanksStopped(why_);
  }
}

// A rank that fails sends why and goes; who writes to it meanwhile finds it gone, and the reason
// among what it has not read yet.
std::optional<std::string> RankProcesses::last_words() {
  for (RankSocket& socket : peers_) {
    try {
      while (socket.open()) {
        const Message message = socket.receive(milliseconds(0), "last words");
        if (message.kind == kStop) return MessageReader(message.bytes).text();
      }
    } catch (const Error&) {  // nothing more
    }
  }
  return std::nullopt;
}

// Every rank sends what it owns to rank 0, which sends all of it to every rank.
class RankProcesses::Exchanges final : public Communicator {
 public:
  explicit Exchanges(RankProcesses& group) : group_(group) {}
  ShardId id() const override { return group_.id_; }

  void gather(std::span<const Gathered> tensors, const Place& place) override {
    for (const Gathered& tensor : tensors) {
      if (tensor.by_rows()) {
        gather_rows_of(tensor, place);
        continue;
      }
      const auto part = [&](int rank) { return columns(tensor.all, tensor.ends, rank); };
      collect(part(id().rank), tensor.all, part, place);
      spread(tensor.all, place, [&](MessageReader& all) {
        MessageReader again = all;
        Buffer values(tensor.all.dtype, {tensor.all.dim(0), tensor.all.dim(1)});
        get_columns(again, values);
        for (int rank = 0; rank < id().world; ++rank)
          if (rank != id().rank) copy(part(rank), columns(values.view(), tensor.ends, rank));
      });
    }
  }

  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override {
    collect(
        part, part, [&](int rank) { return columns(all, ends, rank); }, place);
  }

  void gather_rows(const TensorView& all, const ConstTensorView& owners,
                   const Place& place) override {
    const ColumnEnds each = column_ends(id().world, id().world, 1);  // rank r has the id r
    gather_rows_of({all, each, owners}, place);
  }

 private:
  void gather_rows_of(const Gathered& tensor, const Place& place) {
    const TensorView& all = tensor.all;
    const auto take_rows = [&](const ConstTensorView& from, auto wanted) {
      for (int64_t i = 0; i < all.dim(0); ++i)
        if (wanted(tensor.owner(i))) copy(all.slice(0, i, i + 1), from.slice(0, i, i + 1));
    };
    Buffer values(all.dtype, {all.dim(0), all.dim(1)});
    collect(
        all, all, [&](int) { return values.view(); }, place,
        [&](int rank) { take_rows(values, [&](int owner) { return owner == rank; }); });
    spread(all, place, [&](MessageReader& from) {
      get_columns(from, values);
      take_rows(values, [&](int owner) { return owner != id().rank; });
    });
  }

  static TensorView columns(const TensorView& all, const ColumnEnds& ends, int rank) {
    return all.slice(1, first_column(ends, rank), ends[static_cast<size_t>(rank)]);
  }
  static void copy(const TensorView& to, const ConstTensorView& from) {
    MessageWriter bytes;
    put_columns(bytes, from);
    MessageReader read(bytes.bytes());
    get_columns(read, to);
  }

  // own: what this rank sends. On rank 0 the values of rank r go to into(r), then taken(r).
  template <class Into, class Taken>
  void collect(const ConstTensorView& own, const TensorView& shape, const Into& into,
               const Place& place, const Taken& taken) {
    if (id().rank != 0) {
      MessageWriter message;
      put_place(message, place, shape);
      put_columns(message, own);
      return group_.reply(kValues, message.bytes());
    }
    for (int rank = 1; rank < id().world; ++rank) {
      const Bytes bytes = group_.receive(rank, kValues, group_.limit_, to_string(place));
      MessageReader reader(bytes);
      check_place(reader, rank, place, shape);
      get_columns(reader, into(rank));
      reader.end();
      taken(rank);
    }
  }
  template <class Into>
  void collect(const ConstTensorView& own, const TensorView& shape, const Into& into,
               const Place& place) {
    collect(own, shape, into, place, [](int) {});
  }

  // Rank 0 sends all values; the others read them.
  template <class Read>
  void spread(const TensorView& all, const Place& place, const Read& read) {
    if (id().rank == 0) {
      MessageWriter message;
      put_columns(message, all);
      return group_.tell(kAllValues, message.bytes());
    }
    const Bytes bytes = group_.receive(0, kAllValues, group_.limit_, to_string(place));
    MessageReader reader(bytes);
    read(reader);
  }

  RankProcesses& group_;
};

RankProcesses::RankProcesses(const LaunchedRank& self, const RankIdentity& identity,
                             milliseconds wait)
    : id_(self.id),
      peers_(connect_ranks(self, identity, wait, limit_)),
      exchanges_(std::make_unique<Exchanges>(*this)) {
}

RankProcesses::~RankProcesses() {
  if (said_ || left_) return;
  if (!why_.empty()) {
    abort(why_);
  } else if (std::uncaught_exceptions() > exceptions_) {
    const std::lock_guard lock(unsaid_mutex);
    unsaid.push_back({id_.rank, std::move(peers_)});
  } else if (id_.rank == 0) {
    end_others();
  }
}

void RankProcesses::end_others() noexcept {
  const auto to_all = [&](const auto& act) {
    for (RankSocket& socket : peers_) {
      try {
        if (socket.open()) act(socket);
      } catch (const Error&) {  // it has ended already
        socket.close();
      }
    }
  };
  watch_.reset();
  to_all([](RankSocket& socket) { socket.send(kEnd, {}, kShort, "end"); });
  if (close_) close_();
  to_all([&](RankSocket& socket) {
    while (socket.receive(std::min(limit_, kToClose), "end").kind != kClosed) {
    }
  });
  to_all([](RankSocket& socket) { socket.send(kFree, {}, kShort, "end"); });
}

void RankProcesses::leave() {
  left_ = true;
  if (close_) close_();
  try {
    peer(0).send(kClosed, {}, kShort, "end");
    peer(0).receive(2 * kToClose, "end");
  } catch (const RanksStopped&) {  // rank 0 has gone: the end has come all the same
  }
}

void tell_other_ranks(const std::string& why) {
  const std::lock_guard lock(unsaid_mutex);
  for (Unsaid& group : unsaid) say_stop(group.peers, fmt::format("rank {}: {}", group.rank, why));
  unsaid.clear();
}

void RankProcesses::check_works() const {
  if (!why_.empty()) throw RanksStopped(why_);
}

Bytes RankProcesses::receive(int rank, uint32_t kind, RankLimit limit, const std::string& doing) {
  Message message = stopping([&] {
    Message came = peer(rank).receive(limit, doing);
    if (came.kind == kStop) throw RanksStopped(MessageReader(came.bytes).text());
    return came;
  });
  DSV4_CHECK(message.kind == kind, "rank {} sent message {}, want {} ({})", rank, message.kind,
             kind, doing);
  return std::move(message.bytes);
}

void RankProcesses::tell(uint32_t kind, const Bytes& bytes) {
  stopping([&] {
    for (int rank = 1; rank < id_.world; ++rank) peer(rank).send(kind, bytes, limit_, "step");
  });
}

Bytes RankProcesses::answer(int rank, uint32_t kind, const std::string& doing) {
  return receive(rank, kind, limit_, doing);
}

std::vector<Bytes> RankProcesses::swap(const Bytes& own, const std::string& doing) {
  std::vector<Bytes> all(static_cast<size_t>(id_.world));
  if (id_.rank != 0) {
    reply(kGiven, own);
    const Bytes bytes = receive(0, kAllGiven, std::nullopt, doing);
    MessageReader reader(bytes);
    for (Bytes& one : all) one = reader.list<std::byte>();
    reader.end();
    return all;
  }
  all[0] = own;
  for (int rank = 1; rank < id_.world; ++rank)
    all[static_cast<size_t>(rank)] = receive(rank, kGiven, std::nullopt, doing);
  MessageWriter message;
  for (const Bytes& one : all) message.list(std::span<const std::byte>(one));
  tell(kAllGiven, message.bytes());
  return all;
}

void RankProcesses::on_end(std::function<void()> ended) {
  std::vector<int> descriptors;
  for (const RankSocket& socket : peers_)
    if (socket.open()) descriptors.push_back(socket.descriptor());
  watch_ = std::make_unique<RankWatch>(std::move(descriptors), std::move(ended));
}

std::optional<RankProcesses::Message> RankProcesses::next(const std::function<void()>& meanwhile) {
  check_works();
  const auto sleeps = Clock::now() + awake_;
  while (Clock::now() < sleeps && !peer(0).readable(milliseconds(0))) std::this_thread::yield();
  while (!peer(0).readable(kNowAndThen)) {
    try {
      meanwhile();
    } catch (const RanksStopped&) {
      if (!peer(0).readable(milliseconds(0))) throw;  // else rank 0 says why
    }
  }
  Message message = stopping([&] {
    Message came = peer(0).receive(std::nullopt, "next step");
    if (came.kind == kStop) throw RanksStopped(MessageReader(came.bytes).text());
    return came;
  });
  if (message.kind == kEnd) return std::nullopt;
  return message;
}

void RankProcesses::reply(uint32_t kind, const Bytes& bytes) {
  stopping([&] { peer(0).send(kind, bytes, limit_, "answer"); });
}

// What one rank failed of is what all of them say.
void RankProcesses::abort(const std::string& why) {
  if (why_.empty()) why_ = why;
  if (!std::exchange(said_, true)) say_stop(peers_, why);
}

void RankProcesses::stop_all(milliseconds wait) {
  const auto stop = [&](const std::string& own) {
    const std::string line = reason(fmt::format("rank {}: {}", id_.rank, own), wait);
    abort(line);
    return line;
  };
  try {
    throw;
  } catch (const RanksStopped& stopped) {
    const std::string line = reason(stopped.what());
    abort(line);
    throw RanksStopped(line);
  } catch (const NotFinite& error) {  // all ranks find it at once; callers catch its type
    abort(error.what());
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), stop(error.what()));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kResource, stop("out of memory"));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kResource, stop(error.what()));
  }
}

std::string RankProcesses::reason(const std::string& otherwise, milliseconds wait) {
  const auto deadline = Clock::now() + wait;
  try {
    stopping([&] {
      do {
        check();
      } while (Clock::now() < deadline && (std::this_thread::sleep_for(kBetweenLooks), true));
      throw RanksStopped(otherwise);
    });
  } catch (const RanksStopped&) {  // why_ has it
  }
  return why_;
}

void RankProcesses::check() const {
  check_works();
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (peers_[rank].open() && peers_[rank].ended())
      throw RanksStopped(fmt::format("rank {} has ended", rank));
}

}  // namespace dsv4
