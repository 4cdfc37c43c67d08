#include "dsv4/comm/rank_processes.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "dsv4/comm/threads.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum Kind : uint32_t {
  kHello = 1,
  kWelcome,
  kRefused,
  kStop,
  kEnd,
  kValues,
  kAllValues,
  kGiven,
  kAllGiven
};

constexpr uint32_t kProtocol = 1;
constexpr milliseconds kShort{500};      // to say to a rank that all stop
constexpr milliseconds kRestart{15000};  // until the rank 0 of a job before has gone
constexpr milliseconds kNowAndThen{250}, kBetweenLooks{20};

// Names of sockets have a length; a hash makes the job's differ from others'.
std::string socket_name(const LaunchedRank& self) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : self.meeting) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("dsv4-ranks-{}-{:016x}", geteuid(), hash);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  return list;
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
      peers_(static_cast<size_t>(self.id.world)),
      exchanges_(std::make_unique<Exchanges>(*this)) {
  const std::string name = socket_name(self);
  id_.rank == 0 ? meet_as_root(name, identity, wait) : meet(name, identity, wait);
}

RankProcesses::~RankProcesses() {
  if (id_.rank != 0 || !why_.empty()) return;
  for (RankSocket& socket : peers_) {
    try {
      if (socket.open()) socket.send(kEnd, {}, kShort, "end");
    } catch (const Error&) {  // it has ended already
    }
  }
}

void RankProcesses::take_hello(RankSocket socket, const RankIdentity& own) {
  const RankSocket::Message hello = socket.receive(kShort, "hello");
  MessageReader reader(hello.bytes);
  const auto protocol = reader.get<uint32_t>();
  const std::string program = reader.text();
  if (hello.kind != kHello || protocol != kProtocol || program != own.program) {
    socket.send(kRefused, MessageWriter().text("rank 0 runs " + own.program).bytes(), kShort, "");
    fail(ErrorCode::kUnsupported, "a rank runs {}, rank 0 {}", program, own.program);
  }
  const auto id = reader.get<ShardId>();
  const std::string model = reader.text(), processor = reader.text();
  const auto refuse = [&](const std::string& line) {
    socket.send(kRefused, MessageWriter().text(line).bytes(), kShort, "");
    fail(ErrorCode::kUnsupported, line);
  };
  if (id.world != id_.world)
    refuse(fmt::format("rank {} is one of {} ranks, rank 0 of {}", id.rank, id.world, id_.world));
  if (id.rank < 1 || id.rank >= id_.world || peer(id.rank).open())
    refuse(fmt::format("two processes are rank {}", id.rank));
  if (model != own.model)
    refuse(fmt::format("rank {} has the model {}, rank 0 {}", id.rank, model, own.model));
  if (processor != own.processor)
    refuse(
        fmt::format("rank {} computes on {}, rank 0 on {}: ranks agree bit for bit on "
                    "processors of one kind only",
                    id.rank, processor, own.processor));
  socket.set_peer(id.rank);
  peer(id.rank) = std::move(socket);
}

void RankProcesses::meet_as_root(const std::string& name, const RankIdentity& identity,
                                 milliseconds wait) {
  if (id_.world == 1) return;
  RankSocket listener = RankSocket::listen(name, std::min(wait, kRestart));
  const auto deadline = Clock::now() + wait;
  try {
    for (int arrived = 1; arrived < id_.world; ++arrived) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      std::optional<RankSocket> socket = listener.accept(std::max(left, milliseconds(0)));
      if (!socket) {
        std::vector<int> missing;
        for (int rank = 1; rank < id_.world; ++rank)
          if (!peer(rank).open()) missing.push_back(rank);
        fail(ErrorCode::kUnsupported, "{} of {} ranks came within {} s; missing: {}", arrived,
             id_.world, static_cast<double>(wait.count()) / 1000, list_of(missing));
      }
      take_hello(std::move(*socket), identity);
    }
  } catch (const Error& error) {
    for (RankSocket& socket : peers_) {
      try {
        if (socket.open())
          socket.send(kRefused, MessageWriter().text(error.what()).bytes(), kShort, "");
      } catch (const Error&) {  // it has ended
      }
    }
    throw;
  }
  for (int rank = 1; rank < id_.world; ++rank) peer(rank).send(kWelcome, {}, limit_, "welcome");
}

void RankProcesses::meet(const std::string& name, const RankIdentity& identity, milliseconds wait) {
  std::optional<RankSocket> socket = RankSocket::connect(name, 0, wait);
  if (!socket)
    fail(ErrorCode::kUnsupported, "rank {} found no rank 0 within {} s", id_.rank,
         static_cast<double>(wait.count()) / 1000);
  peer(0) = std::move(*socket);
  MessageWriter hello;
  hello.put(kProtocol)
      .text(identity.program)
      .put(id_)
      .text(identity.model)
      .text(identity.processor);
  peer(0).send(kHello, hello.bytes(), wait, "hello");
  const Message message = peer(0).receive(wait + limit_, "the other ranks come");
  if (message.kind == kWelcome) return;
  fail(ErrorCode::kUnsupported, MessageReader(message.bytes).text());
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
  if (std::exchange(said_, true)) return;
  for (RankSocket& socket : peers_) {
    try {
      if (!socket.open()) continue;
      socket.send(kStop, MessageWriter().text(why).bytes(), kShort, "stop");
      socket.finish();
    } catch (const Error&) {  // it has ended
    }
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
