// comm/exchange.cuh on the emulator: ranks side by side in one launch, odd ones in smaller units,
// several exchanges after one another, and a barrier of the rank's CTAs where the next kernel of
// its stream would begin; those by words (comm/exchange_words.cuh) among the others. And
// comm/exchange_slots.cuh, around copies that stand for an all-gather.

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/rng.h"
#include "dsv4/comm/communicator.h"
#include "dsv4/comm/exchange_slots.cuh"
#include "dsv4/comm/exchange_words.cuh"
#include "dsv4/device/ptx/global_flag.cuh"
#include "tests/emulator/launch.h"

namespace dsv4 {
namespace {

using exchange::ExchangedTensor;
using exchange::ExchangeParams;

constexpr int kCtas = 3, kThreads = 64;
constexpr int64_t kBufferBytes = 4096;
constexpr uint16_t kUnwritten = 0xffff;

enum class Kind { kGather, kToRoot, kRows };

// The value of an element of an exchange, known to the test alone.
uint16_t value(int64_t exchange, int64_t row, int64_t column) {
  return static_cast<uint16_t>(exchange * 5003 + row * 211 + column * 3);
}

// A tensor of an exchange: [rows, columns] of every rank, in rows of columns + 2.
struct Case {
  Kind kind;
  int64_t rows, columns;
  ColumnEnds ends;
  ColumnEnds id_ends;                          // of rows
  std::vector<int32_t> ids;                    // [rows], some of them of no rank
  std::vector<std::vector<uint16_t>> of_rank;  // [world][rows, columns + 2]

  bool owns(int rank, int64_t row, int64_t column) const {
    if (kind == Kind::kRows)
      return Gathered::owner_of(id_ends, ids[static_cast<size_t>(row)]) == rank;
    return column >= first_column(ends, rank) && column < ends[static_cast<size_t>(rank)];
  }
  uint16_t* at(int rank, int64_t row) {
    return of_rank[static_cast<size_t>(rank)].data() + row * (columns + 2) + 1;
  }
};

// What each rank owns is written.
void fill(Case& c, Rng& rng, int world, int64_t number) {
  for (int64_t i = 0; i < c.rows; ++i) c.ids.push_back(static_cast<int32_t>(rng.below(15)) - 1);
  for (int r = 0; r < world; ++r) {
    c.of_rank.emplace_back(static_cast<size_t>(c.rows * (c.columns + 2)), kUnwritten);
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t j = 0; j < c.columns; ++j)
        if (c.owns(r, i, j)) c.at(r, i)[j] = value(number, i, j);
  }
}

Case random_case(Rng& rng, int world, int64_t number) {
  Case c{.kind = static_cast<Kind>(rng.below(3)),
         .rows = rng.below(5),
         .columns = 1 + rng.below(70),
         .ends = {},
         .id_ends = column_ends(world, rng.below(12), 1),
         .ids = {},
         .of_rank = {}};
  c.ends = column_ends(world, c.columns, 1 + rng.below(20));
  fill(c, rng, world, number);
  return c;
}
// Columns of which every rank has some, in whole words; or rows of whole words.
Case words_case(Rng& rng, int world, int64_t number, Kind kind) {
  const int64_t of_word = exchange::kWordBytes / 2;
  Case c = random_case(rng, world, number);
  c.kind = kind;
  c.rows = 1 + rng.below(4), c.columns = of_word * (world + rng.below(12));
  c.ends = column_ends(world, c.columns, of_word);
  c.ids.clear(), c.of_rank.clear();
  fill(c, rng, world, number);
  return c;
}

// One exchange: a tensor, or by words two, the second of which has rows.
struct Exchange {
  std::vector<Case> tensors;
  bool by_words;
};

Exchange random_exchange(Rng& rng, int world, int64_t number) {
  if (rng.below(2) == 0) return {{random_case(rng, world, number)}, false};
  Exchange e{{words_case(rng, world, number, Kind::kGather)}, true};
  if (rng.below(2) == 0) e.tensors.push_back(words_case(rng, world, number, Kind::kRows));
  return e;
}

// Memory of all ranks.
struct Group {
  explicit Group(int world)
      : windows(static_cast<size_t>(world), std::vector<unsigned char>(2 * kBufferBytes)),
        words(static_cast<size_t>(world), std::vector<ptx::NumberedWord>(2 * exchange::kWords)),
        flags(static_cast<size_t>(world), std::vector<int64_t>(static_cast<size_t>(world * kCtas))),
        done(static_cast<size_t>(world), std::vector<int64_t>(kCtas)),
        waited(static_cast<size_t>(world)) {}
  int world() const { return static_cast<int>(windows.size()); }

  ExchangeParams params(Case& c, int rank) {
    ExchangeParams p{};
    p.rank = rank, p.world = world(), p.granule = 1;
    p.receivers = c.kind == Kind::kToRoot ? 1 : ~0u;
    p.buffer_bytes = kBufferBytes;
    p.done = done[static_cast<size_t>(rank)].data();
    p.waited = &waited[static_cast<size_t>(rank)];
    p.stop = &stop, p.fault = &fault;
    for (int r = 0; r < world(); ++r) {
      p.windows[r] = windows[static_cast<size_t>(r)].data();
      p.words[r] = words[static_cast<size_t>(r)].data();
      p.flags[r] = flags[static_cast<size_t>(r)].data();
    }
    if (c.rows > 0) add(p, c);
    return p;
  }
  ExchangeParams params(Exchange& e, int rank) {
    ExchangeParams p = params(e.tensors.front(), rank);
    for (size_t i = 1; i < e.tensors.size(); ++i) add(p, e.tensors[i]);
    return p;
  }

  // A tensor more, behind the one before.
  void add(ExchangeParams& p, Case& c) const {
    const int rank = p.rank;
    ExchangedTensor& t = p.tensors[p.num_tensors++];
    if (p.num_tensors > 1) {
      const ExchangedTensor& before = p.tensors[p.num_tensors - 2];
      t.window = (before.window + before.rows * before.columns * 2 + 15) / 16 * 16;
    }
    const bool rows = c.kind == Kind::kRows;
    t.from_stride = t.to_stride = c.columns + 2;
    t.rows = static_cast<int32_t>(c.rows), t.columns = static_cast<int32_t>(c.columns);
    for (int r = 0; r < world(); ++r) {
      t.begin[r] = rows ? 0 : static_cast<int32_t>(first_column(c.ends, r));
      t.count[r] =
          rows ? t.columns : static_cast<int32_t>(c.ends[static_cast<size_t>(r)]) - t.begin[r];
    }
    t.ids = rows ? c.ids.data() : nullptr;
    for (int r = 0; r < world(); ++r)
      t.ends[r] = static_cast<int32_t>(c.id_ends[static_cast<size_t>(r)]);
    t.from = c.at(rank, 0) + t.begin[rank];
    t.to = p.receivers >> rank & 1 ? c.at(rank, 0) : nullptr;
  }

  // `params` for a rank whose addresses allow no more than bytes.
  static ExchangeParams in_bytes(ExchangeParams p) {
    p.granule *= 2;
    for (ExchangedTensor& t : p.tensors) {
      t.columns *= 2, t.from_stride *= 2, t.to_stride *= 2;
      for (int r = 0; r < p.world; ++r) t.begin[r] *= 2, t.count[r] *= 2;
    }
    return p;
  }

  std::vector<std::vector<unsigned char>> windows;
  std::vector<std::vector<ptx::NumberedWord>> words;
  std::vector<std::vector<int64_t>> flags, done;
  std::vector<int64_t> waited;  // [world]
  int64_t stop = 0;
  exchange::Fault fault{};
};

template <class Unit>
void one_exchange(const ExchangeParams& p, bool by_words, int cta) {
  by_words ? exchange::exchange_words<Unit>(p, cta, kCtas)
           : exchange::exchange<Unit>(p, cta, kCtas);
}

// All exchanges on all ranks. steps: [exchange][rank]
void run(const std::vector<std::vector<ExchangeParams>>& steps, const std::vector<Exchange>& kinds,
         int world, uint64_t seed) {
  std::vector<int32_t> ended(static_cast<size_t>(world), 0);
  const emulator::Launch launch{
      .grid = world * kCtas, .block = kThreads, .seed = seed, .resident = world * kCtas};
  emulator::launch(launch, [&] {
    const int rank = static_cast<int>(blockIdx.x) / kCtas,
              cta = static_cast<int>(blockIdx.x) % kCtas;
    for (size_t e = 0; e < steps.size(); ++e) {
      const ExchangeParams& p = steps[e][static_cast<size_t>(rank)];
      rank % 2 == 0 ? one_exchange<uint16_t>(p, kinds[e].by_words, cta)
                    : one_exchange<uint8_t>(Group::in_bytes(p), kinds[e].by_words, cta);
      // The next kernel begins when this one has ended.
      __syncthreads();
      if (threadIdx.x == 0) {
        ptx::add_release(&ended[static_cast<size_t>(rank)], 1);
        ptx::wait_at_least(&ended[static_cast<size_t>(rank)], static_cast<int32_t>(e + 1) * kCtas);
      }
      __syncthreads();
    }
  });
}

void expect_all(Case& c, int world, int64_t exchange) {
  for (int r = 0; r < world; ++r) {
    const bool gets = c.kind != Kind::kToRoot || r == 0;
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.columns; ++j) {
        const uint16_t want = gets || c.owns(r, i, j) ? value(exchange, i, j) : kUnwritten;
        ASSERT_EQ(c.at(r, i)[j], want)
            << "exchange " << exchange << " rank " << r << ", " << i << " " << j;
      }
      ASSERT_EQ(c.at(r, i)[-1], kUnwritten) << "outside of the tensor";
      ASSERT_EQ(c.at(r, i)[c.columns], kUnwritten) << "outside of the tensor";
    }
  }
}

void check(int world, int exchanges, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << world << " ranks, seed " << seed);
  Rng rng(seed);
  Group group(world);
  std::vector<Exchange> all;
  for (int e = 0; e < exchanges; ++e) all.push_back(random_exchange(rng, world, e));
  std::vector<std::vector<ExchangeParams>> steps(all.size());
  for (size_t e = 0; e < all.size(); ++e)
    for (int r = 0; r < world; ++r) steps[e].push_back(group.params(all[e], r));
  ASSERT_NO_THROW(run(steps, all, world, seed));
  for (const int64_t time : group.waited) EXPECT_GE(time, exchanges) << "each wait counts";
  for (int e = 0; e < exchanges; ++e)
    for (Case& c : all[static_cast<size_t>(e)].tensors) expect_all(c, world, e);
}

void run_slots(const std::vector<ExchangeParams>& params, bool before, uint64_t seed) {
  const int world = static_cast<int>(params.size());
  const emulator::Launch launch{.grid = world * kCtas, .block = kThreads, .seed = seed};
  emulator::launch(launch, [&] {
    const int rank = static_cast<int>(blockIdx.x) / kCtas,
              cta = static_cast<int>(blockIdx.x) % kCtas;
    const ExchangeParams& p = params[static_cast<size_t>(rank)];
    rank % 2 == 0 ? exchange::through_slots<uint16_t>(p, before, cta, kCtas)
                  : exchange::through_slots<uint8_t>(Group::in_bytes(p), before, cta, kCtas);
  });
}

void check_slots(int world, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << world << " ranks, seed " << seed);
  Rng rng(seed);
  Group group(world);
  Case c = random_case(rng, world, 3);
  std::vector<ExchangeParams> params;
  for (int r = 0; r < world; ++r) params.push_back(group.params(c, r));
  const ExchangedTensor& t = params.front().tensors[0];
  const int64_t widest = *std::max_element(t.count, t.count + world);
  constexpr int64_t kBefore = 16;  // of another tensor
  const int64_t bytes = kBefore + c.rows * widest * 2;
  std::vector<std::vector<unsigned char>> slots(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) {
    auto& own = slots[static_cast<size_t>(r)];
    own.assign(static_cast<size_t>(world * bytes), 0xee);
    ExchangeParams& p = params[static_cast<size_t>(r)];
    p.windows[r] = own.data(), p.buffer_bytes = bytes, p.tensors[0].window = kBefore;
  }
  ASSERT_NO_THROW(run_slots(params, true, seed));
  for (int r = 0; r < world; ++r) {
    const auto slot = slots[static_cast<size_t>(r)].begin() + r * bytes;
    for (auto& other : slots) std::copy(slot, slot + bytes, other.begin() + r * bytes);
  }
  ASSERT_NO_THROW(run_slots(params, false, seed));
  expect_all(c, world, 3);
}

TEST(ExchangeEmulated, EveryRankGetsWhatTheOthersOwn) {
  for (const int world : {1, 2, 3, 5}) {
    for (uint64_t seed = 0; seed < 12; ++seed)
      check(world, 6, 100 * static_cast<uint64_t>(world) + seed);
  }
}

TEST(ExchangeEmulated, SlotsBringTheSame) {
  for (const int world : {1, 2, 3, 5}) {
    for (uint64_t seed = 0; seed < 20; ++seed)
      check_slots(world, 1000 * static_cast<uint64_t>(world) + seed);
  }
}

}  // namespace
}  // namespace dsv4
