// Ranks that meet at sockets, here as threads of one process: what they compare, exchanges of odd
// sizes, and every way in which one of them ends. tests/cli/rank_processes_test.py has processes.

#include "dsv4/comm/rank_processes.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <new>
#include <stdexcept>
#include <thread>

#include "dsv4/base/rng.h"
#include "dsv4/comm/threads.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kLong{20000};
constexpr uint32_t kSomething = RankProcesses::kFirstKind;

const RankIdentity kIdentity{"dsv4 1", "abc", "avx2"};

LaunchedRank launched(int rank, int world) {
  static int meetings = 0;
  if (rank == 0) ++meetings;
  return {.id = {rank, world},
          .local_rank = rank,
          .meeting = fmt::format("test {} {}", getpid(), meetings)};
}

// Runs body(rank) on threads and returns what each threw.
std::vector<std::string> on_ranks(int world, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        tell_other_ranks(error.what());
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> group(int world, const std::function<void(RankProcesses&)>& body) {
  std::vector<LaunchedRank> self;
  for (int rank = 0; rank < world; ++rank) self.push_back(launched(rank, world));
  return on_ranks(world, [&](int rank) {
    RankProcesses ranks(self[static_cast<size_t>(rank)], kIdentity, kLong);
    body(ranks);
  });
}

float value(int64_t exchange, int64_t row, int64_t column) {
  return static_cast<float>(exchange * 100000 + row * 1000 + column);
}

TEST(RankProcesses, ExchangesGiveEveryRankWhatItIsOwed) {
  for (const int world : {2, 3, 5}) {
    const auto errors = group(world, [&](RankProcesses& processes) {
      Rng sizes(7);  // the same on all ranks
      Communicator& ranks = processes.exchanges();
      const int self = ranks.id().rank;
      for (int64_t step = 0; step < 12; ++step) {
        const int64_t rows = sizes.below(5), n = 1 + sizes.below(40);
        const ColumnEnds ends = column_ends(world, n, 1 + sizes.below(9));
        const int64_t begin = first_column(ends, self), end = ends[static_cast<size_t>(self)];
        Buffer memory(DType::kF32, {rows, n + 2});
        std::fill_n(memory.as<float>(), rows * (n + 2), -1.f);
        const TensorView all = memory.view().slice(1, 1, n + 1);
        const auto write = [&](auto owns) {
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t c = 0; c < n; ++c)
              all.row<float>(i)[c] = owns(i, c) ? value(step, i, c) : -1.f;
        };
        const auto expect_all = [&](auto has) {
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t c = 0; c < n; ++c)
              ASSERT_EQ(all.row<float>(i)[c], has(i, c) ? value(step, i, c) : -1.f)
                  << i << " " << c;
            ASSERT_EQ(all.row<float>(i)[-1], -1.f);
            ASSERT_EQ(all.row<float>(i)[n], -1.f);
          }
        };
        const auto own = [&](int64_t, int64_t c) { return c >= begin && c < end; };
        const auto every = [](int64_t, int64_t) { return true; };
        write(own);
        const Gathered tensors[] = {{all, ends}};
        ranks.gather(tensors, {"gather", step});
        expect_all(every);
        write(own);
        ranks.to_root(all.slice(1, begin, end), all, ends, {"to root", step});
        if (self == 0) {
          expect_all(every);
        } else {
          expect_all(own);
        }
        const Buffer owners(DType::kI32, {rows});
        for (int64_t i = 0; i < rows; ++i)
          owners.as<int32_t>()[i] = static_cast<int32_t>(sizes.below(world));
        write([&](int64_t i, int64_t) { return owners.as<int32_t>()[i] == self; });
        ranks.gather_rows(all, owners, {"rows", step});
        expect_all(every);
        const ColumnEnds id_ends = column_ends(world, 5, 1);
        for (int64_t i = 0; i < rows; ++i)
          owners.as<int32_t>()[i] = static_cast<int32_t>(sizes.below(5));
        const Gathered of_ids[] = {{all, id_ends, owners}};
        write([&](int64_t i, int64_t) { return of_ids[0].owner(i) == self; });
        ranks.gather(of_ids, {"rows of ids", step});
        expect_all(every);
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << world;
  }
}

TEST(RankProcesses, TheyCompareWhatTheyAre) {
  const auto meet = [](const RankIdentity& other, ShardId as) {
    LaunchedRank root = launched(0, 2), second = root;
    second.id = as;
    const auto begin = Clock::now();
    const auto errors = on_ranks(2, [&](int rank) {
      RankProcesses(rank == 0 ? root : second, rank == 0 ? kIdentity : other, kLong);
    });
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1)) << "at once, on all ranks";
    return errors;
  };
  RankIdentity other = kIdentity;
  other.program = "dsv4 2";
  for (const std::string& line : meet(other, {1, 2}))
    EXPECT_EQ(line, "a rank runs dsv4 2, rank 0 dsv4 1");
  other = kIdentity, other.model = "xyz";
  for (const std::string& line : meet(other, {1, 2}))
    EXPECT_EQ(line, "rank 1 has the model xyz, rank 0 abc");
  other = kIdentity, other.processor = "avx512";
  for (const std::string& line : meet(other, {1, 2}))
    EXPECT_EQ(line,
              "rank 1 computes on avx512, rank 0 on avx2: ranks agree bit for bit on processors of "
              "one kind only");
  for (const std::string& line : meet(kIdentity, {1, 3}))
    EXPECT_EQ(line, "rank 1 is one of 3 ranks, rank 0 of 2");
  for (const std::string& line : meet(kIdentity, {2, 2}))
    EXPECT_EQ(line, "two processes are rank 2");
}

TEST(RankProcesses, RanksThatDoNotCome) {
  const LaunchedRank root = launched(0, 4);
  LaunchedRank second = root;
  second.id.rank = 2;
  const auto errors = on_ranks(2, [&](int rank) {
    RankProcesses(rank == 0 ? root : second, kIdentity, milliseconds(rank == 0 ? 300 : 20000));
  });
  EXPECT_EQ(errors[0], "2 of 4 ranks came within 0.3 s; missing: 1, 3");
  EXPECT_EQ(errors[1], errors[0]);
  LaunchedRank alone = launched(0, 2);
  alone.id.rank = 1;
  EXPECT_EQ(on_ranks(1, [&](int) { RankProcesses(alone, kIdentity, milliseconds(100)); })[0],
            "rank 1 found no rank 0 within 0.1 s");
}

// Another process of this user, which knows the name of the job's socket.
RankSocket stranger(const LaunchedRank& self) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char c : self.meeting) hash = (hash ^ c) * 1099511628211u;
  auto socket =
      RankSocket::connect(fmt::format("dsv4-ranks-{}-{:016x}", geteuid(), hash), 0, kLong);
  if (!socket) fail(ErrorCode::kIo, "no rank {} listens", 0);
  return std::move(*socket);
}

// Ranks meet although some connect and say nothing, go, or say what is no hello.
TEST(RankProcesses, StrangersDoNotEndTheMeeting) {
  const LaunchedRank root = launched(0, 2);
  LaunchedRank second = root;
  second.id.rank = 1;
  std::promise<void> strangers_came;
  const auto begin = Clock::now();
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank == 0) RankProcesses(root, kIdentity, kLong);
    if (rank == 1) {
      strangers_came.get_future().wait();
      RankProcesses(second, kIdentity, kLong);
    }
    if (rank == 2) {
      const RankSocket silent = stranger(root), half = stranger(root), garbled = stranger(root);
      stranger(root).close();
      EXPECT_EQ(write(half.descriptor(), "dsv4", 4), 4);
      EXPECT_EQ(write(garbled.descriptor(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
      stranger(root).send(kSomething, {}, kLong, "");
      std::this_thread::sleep_for(milliseconds(700));
      strangers_came.set_value();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_LT(Clock::now() - begin, kLong / 4);
}

// A process that the system stops for a while between its connection and its hello.
TEST(RankProcesses, ASlowRankHasTheWholeWait) {
  const LaunchedRank root = launched(0, 2);
  const auto errors = on_ranks(2, [&](int rank) {
    if (rank == 0) RankProcesses(root, kIdentity, kLong);
    if (rank == 1) {
      RankSocket slow = stranger(root);
      std::this_thread::sleep_for(milliseconds(800));
      slow.send(1, put_hello({1, 2}, kIdentity), kLong, "hello");
      EXPECT_EQ(slow.receive(kLong, "welcome").kind, 2u);
    }
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

// A connection waits, and the process has no descriptor left for it.
TEST(RankSocket, AcceptWithoutDescriptorsEndsInTime) {
  const std::string name = fmt::format("dsv4-test-accept-{}", getpid());
  RankSocket listener = RankSocket::listen(name, kLong);
  const auto waiting = RankSocket::connect(name, 0, kLong);
  ASSERT_TRUE(waiting.has_value());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  close(next);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  auto accepted =
      std::async(std::launch::async, [&] { return listener.accept(milliseconds(200)); });
  const bool in_time = accepted.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(in_time);
  EXPECT_FALSE(accepted.get().has_value());
  EXPECT_EQ(listener.trouble(), std::generic_category().message(EMFILE));
  EXPECT_TRUE(listener.accept(milliseconds(200)).has_value());
  EXPECT_EQ(listener.trouble(), "");
}

TEST(RankProcesses, MessagesGoBothWaysAndTheEndComes) {
  const auto errors = group(3, [&](RankProcesses& ranks) {
    if (ranks.id().rank == 0) {
      ranks.tell(kSomething, MessageWriter().put(17).text("step").bytes());
      for (int rank = 1; rank < 3; ++rank) {
        const Bytes bytes = ranks.answer(rank, kSomething, "answer");
        EXPECT_EQ(MessageReader(bytes).get<int>(), 17 + rank);
      }
      return ranks.check();
    }
    if (ranks.id().rank == 1) ranks.stay_awake(milliseconds(50));
    const auto message = ranks.next();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->kind, kSomething);
    MessageReader reader(message->bytes);
    ranks.reply(kSomething, MessageWriter().put(reader.get<int>() + ranks.id().rank).bytes());
    EXPECT_EQ(reader.text(), "step");
    EXPECT_FALSE(ranks.next().has_value()) << "rank 0 has come to its end";
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(RankProcesses, AllGetWhatEachGives) {
  for (const int world : {2, 3, 5}) {
    const auto errors = group(world, [&](RankProcesses& ranks) {
      ranks.set_limit(milliseconds(100));  // which does not hold here: ranks load for minutes
      for (size_t round = 0; round < 3; ++round) {
        const int self = ranks.id().rank;
        if (self == 1) std::this_thread::sleep_for(milliseconds(round == 0 ? 300 : 0));
        const Bytes own(round * static_cast<size_t>(self), std::byte(self + 1));
        const std::vector<Bytes> all = ranks.swap(own, "handles");
        ASSERT_EQ(std::ssize(all), world);
        for (int r = 0; r < world; ++r)
          EXPECT_EQ(all[static_cast<size_t>(r)],
                    Bytes(round * static_cast<size_t>(r), std::byte(r + 1)));
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << world;
  }
}

TEST(RankProcesses, ARankThatEndsInASwapIsNamed) {
  const auto errors = group(2, [&](RankProcesses& ranks) {
    if (ranks.id().rank == 0) ranks.swap({}, "handles");
  });
  EXPECT_EQ(errors[0], "rank 1 has ended");
}

// A rank that waits for its GPU reads no socket; on_end() calls it. A rank that says why it stops
// is noticed before its process ends.
TEST(RankProcesses, TheEndOfARankIsNoticedWithoutReading) {
  for (const bool says_why : {false, true}) {
    std::promise<void> noticed;
    const auto errors = group(3, [&](RankProcesses& ranks) {
      const int self = ranks.id().rank;
      const auto ended = std::make_shared<std::promise<void>>();
      ranks.on_end([ended] { ended->set_value(); });
      const auto wait = [&] { ended->get_future().wait(); };
      if (self == 2) std::this_thread::sleep_for(milliseconds(400));  // rank 1 looks up meanwhile
      if (self == 2 && says_why) ranks.abort("rank 2: no memory left");
      if (self == 2 && says_why) {
        EXPECT_EQ(noticed.get_future().wait_for(kLong / 4), std::future_status::ready);
      }
      if (self == 2) return;
      if (self == 0) {
        wait();
        noticed.set_value();
        const std::string why = ranks.reason("the ranks were stopped");
        ranks.abort(why);
        throw RanksStopped(why);
      }
      ranks.next([&] { wait(), throw RanksStopped("its own exchange ended"); });
    });
    const std::string want = says_why ? "rank 2: no memory left" : "rank 2 has ended";
    EXPECT_EQ(errors[0], want);
    EXPECT_EQ(errors[1], want) << "what rank 0 said, although its own exchange ended too";
  }
}

TEST(RankProcesses, AReasonThatNoOtherRankGivesIsItsOwn) {
  const auto errors = group(2, [&](RankProcesses& ranks) {
    if (ranks.id().rank == 0) {
      const std::string why = ranks.reason("no answer from rank 1 for 10 s (gather h, layer 3)");
      ranks.abort(why);
      throw RanksStopped(why);
    }
    ranks.next();
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "no answer from rank 1 for 10 s (gather h, layer 3)");
}

// A rank whose group an exception takes away: the others say what it failed of, whatever they wait
// for.
TEST(RankProcesses, AnExceptionThatTakesTheGroupAwayIsWhatAllSay) {
  for (const int failing : {0, 1}) {
    for (const bool in_swap : {false, true}) {
      const auto errors = group(3, [&](RankProcesses& ranks) {
        if (ranks.id().rank == failing) fail(ErrorCode::kResource, "no memory for the {}", "cache");
        if (in_swap) ranks.swap({}, "handles");
        if (ranks.id().rank > 0) ranks.next();
        ranks.answer(failing, kSomething, "answer");
      });
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ(errors[static_cast<size_t>(rank)],
                  rank == failing ? "no memory for the cache"
                                  : fmt::format("rank {}: no memory for the cache", failing));
    }
  }
}

// Whatever a rank throws, all say what it was.
TEST(RankProcesses, AnyExceptionStopsAll) {
  const auto lines = [](const std::function<void()>& throws) {
    return group(3, [&](RankProcesses& ranks) {
      try {
        if (ranks.id().rank == 1) throws();
        if (ranks.id().rank == 0) ranks.answer(1, kSomething, "answer");
        ranks.next();
      } catch (const std::exception&) {
        ranks.stop_all();
      }
    });
  };
  for (const std::string& line : lines([] { throw std::bad_alloc(); }))
    EXPECT_EQ(line, "rank 1: out of memory");
  for (const std::string& line : lines([] { throw std::runtime_error("from a library"); }))
    EXPECT_EQ(line, "rank 1: from a library");
  for (const std::string& line : lines([] { fail(ErrorCode::kIo, "page {} is gone", 3); }))
    EXPECT_EQ(line, "rank 1: page 3 is gone");
}

// No rank frees what it offered before all have closed what they opened.
TEST(RankProcesses, AllCloseBeforeAnyFrees) {
  std::atomic<int> closed = 0;
  const auto errors = group(3, [&](RankProcesses& ranks) {
    struct Offered {  // freed with the group, as windows are
      std::atomic<int>& closed;
      ~Offered() { EXPECT_EQ(closed, 3); }
    };
    const auto offered = std::make_shared<Offered>(closed);
    ranks.on_close([&closed, offered, slow = ranks.id().rank == 2] {
      std::this_thread::sleep_for(milliseconds(slow ? 300 : 0));
      ++closed;
    });
    if (ranks.id().rank == 0) return;
    EXPECT_FALSE(ranks.next().has_value());
    ranks.leave();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(closed, 3);
}

// An end that was said is no failure, also when the socket closes before it is read.
TEST(RankProcesses, TheEndOfRank0IsNoFailure) {
  const auto errors = group(2, [&](RankProcesses& ranks) {
    const auto ended = std::make_shared<std::promise<void>>();
    ranks.on_end([ended] { ended->set_value(); });
    if (ranks.id().rank == 0) return ranks.set_limit(milliseconds(100));  // waits for no answer
    ended->get_future().wait();
    EXPECT_FALSE(ranks.next([] { throw RanksStopped("the ranks were stopped"); }).has_value());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Every rank says what the first one failed of, whoever that is.
TEST(RankProcesses, OneThatFailsEndsAll) {
  for (const int failing : {0, 1, 2}) {
    const auto errors = group(3, [&](RankProcesses& ranks) {
      const int self = ranks.id().rank;
      try {
        if (self == failing) fail(ErrorCode::kResource, "rank {}: no memory left", self);
        const Buffer all(DType::kF32, {2, 9});
        const ColumnEnds ends = column_ends(3, 9, 1);
        const Gathered tensors[] = {{all, ends}};
        ranks.exchanges().gather(tensors, {"gather h", 3});
        if (self != 0) ranks.next();
      } catch (const Error& error) {
        ranks.abort(error.what());
        throw;
      }
    });
    for (const std::string& error : errors)
      EXPECT_EQ(error, fmt::format("rank {}: no memory left", failing));
  }
}

TEST(RankProcesses, OneThatIsGoneOrSilentIsNamed) {
  const auto errors = group(2, [&](RankProcesses& ranks) {
    if (ranks.id().rank == 1) return;  // gone
    EXPECT_THROW(ranks.answer(1, kSomething, "step"), RanksStopped);
    ranks.check();
  });
  EXPECT_EQ(errors[0], "rank 1 has ended");
  const auto late = group(2, [&](RankProcesses& ranks) {
    ranks.set_limit(milliseconds(200));
    if (ranks.id().rank == 0) ranks.answer(1, kSomething, "gather h, layer 3");
    ranks.next();  // rank 0 ends meanwhile
  });
  EXPECT_EQ(late[0], "no answer from rank 1 for 0.2 s (gather h, layer 3)");
  const auto other = group(2, [&](RankProcesses& ranks) {
    const Buffer all(DType::kF32, {2, 8});
    const ColumnEnds ends = column_ends(2, 8, 1);
    const Gathered tensors[] = {{all, ends}};
    ranks.exchanges().gather(tensors, {"gather h", ranks.id().rank});
  });
  EXPECT_TRUE(
      other[0].ends_with("rank 1 is at \"gather h, layer 1\", rank 0 at \"gather h, layer "
                         "0\""))
      << other[0];
}

// Whatever a message holds, reading it ends with a value or with an error.
TEST(Message, DamagedOnesAreRefused) {
  const std::vector<int32_t> numbers = {1, 2, 3};
  MessageWriter writer;
  writer.put(int64_t{5}).text("text").list(std::span<const int32_t>(numbers)).put(true);
  Rng rng(3);
  int read = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = writer.bytes();
    if (rng.below(2) == 0) bytes.resize(static_cast<size_t>(rng.below(std::ssize(bytes) + 1)));
    for (int64_t n = rng.below(4); n > 0 && !bytes.empty(); --n)
      bytes[static_cast<size_t>(rng.below(std::ssize(bytes)))] = std::byte(rng.below(256));
    try {
      MessageReader reader(bytes);
      reader.get<int64_t>();
      reader.text();
      reader.list<int32_t>();
      reader.get<uint8_t>();
      reader.end();
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace dsv4
