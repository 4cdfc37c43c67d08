// comm/exchange.cuh on the emulator: ranks side by side in one launch, odd ones in smaller units,
// several exchanges after one another, and a barrier of the rank's CTAs where the next kernel of
// its stream would begin; those by words (comm/exchange_words.cuh), of fewer CTAs, are among the
// others. Tensors in symmetric memory. Kernels of one rank's stream, of which the next may start
// early. And comm/exchange_slots.cuh, around copies that stand for an all-gather.

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
  int ctas;  // by words: so many; 0: not by words
};

Exchange random_exchange(Rng& rng, int world, int64_t number) {
  if (rng.below(2) == 0) return {{random_case(rng, world, number)}, 0};
  Exchange e{{words_case(rng, world, number, Kind::kGather)},
             1 + static_cast<int>(rng.below(kCtas))};
  if (rng.below(2) == 0) e.tensors.push_back(words_case(rng, world, number, Kind::kRows));
  return e;
}

// Memory of all ranks.
struct Group {
  explicit Group(int world)
      : windows(static_cast<size_t>(world), std::vector<unsigned char>(2 * kBufferBytes)),
        words(static_cast<size_t>(world), std::vector<ptx::NumberedWord>(2 * PeerWords::kInBuffer)),
        flags(static_cast<size_t>(world),
              std::vector<int64_t>(static_cast<size_t>(world * exchange::kCtas))),
        done(static_cast<size_t>(world), std::vector<int64_t>(PeerWait::kPlaces)),
        waited(static_cast<size_t>(world)) {}
  int world() const { return static_cast<int>(windows.size()); }

  ExchangeParams params(Case& c, int rank) {
    ExchangeParams p{};
    p.rank = rank, p.world = world(), p.granule = 1;
    p.receivers = c.kind == Kind::kToRoot ? 1 : ~0u;
    p.buffer_bytes = kBufferBytes;
    p.wait.done = done[static_cast<size_t>(rank)].data();
    p.wait.waited = &waited[static_cast<size_t>(rank)];
    p.wait.stop = &stop, p.wait.fault = &fault;
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
  PeerFault fault{};
};

// Waits until `count` CTAs of a rank have come, as if its next kernel began then.
void next_kernel(int32_t* ended, int32_t count) {
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::add_release(ended, 1);
    ptx::wait_at_least(ended, count);
  }
  __syncthreads();
}

template <class Unit>
void one_exchange(const ExchangeParams& p, int words_ctas, int cta) {
  if (words_ctas == 0) return exchange::exchange<Unit>(p, cta, kCtas);
  if (cta < words_ctas) exchange::exchange_words<Unit>(p, false, cta, words_ctas);
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
      rank % 2 == 0 ? one_exchange<uint16_t>(p, kinds[e].ctas, cta)
                    : one_exchange<uint8_t>(Group::in_bytes(p), kinds[e].ctas, cta);
      next_kernel(&ended[static_cast<size_t>(rank)], static_cast<int32_t>(e + 1) * kCtas);
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

// A column of each rank in symmetric memory, whose halves are used in turn. In every round a kernel
// of each rank computes its own column, an exchange follows, and a kernel that reads all columns.
// Some ranks store their column on all ranks as they compute it. In some rounds columns stay, so
// that an exchange has one CTA, and are read where they are, or an exchange more gathers them into
// that half.
struct SymmetricColumns {
  static constexpr int kRows = 24, kHalf = 512;  // values

  explicit SymmetricColumns(int world) : memory(static_cast<size_t>(world * 2 * kHalf)) {}

  uint16_t* half(int rank, int round) { return memory.data() + (2 * rank + round % 2) * kHalf; }

  ExchangeParams params(Group& group, int rank, int round, bool stored) {
    const int world = group.world();
    Case none{};
    ExchangeParams p = group.params(none, rank);
    p.receivers = ~0u, p.num_tensors = 1;
    ExchangedTensor& t = p.tensors[0];
    t.rows = kRows, t.columns = world, t.from_stride = t.to_stride = world;
    t.from = half(rank, round) + rank, t.to = half(rank, round);
    t.way = stored ? exchange::Way::kStored : exchange::Way::kDirect;
    for (int r = 0; r < world; ++r) {
      t.begin[r] = r, t.count[r] = 1;
      p.distance[r] = static_cast<int64_t>(sizeof(uint16_t)) * 2 * kHalf * (r - rank);
    }
    return p;
  }

  std::vector<uint16_t> memory;  // [world][half][kHalf]
};

void check_symmetric(int world, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << world << " ranks, seed " << seed);
  constexpr int kRounds = 6, kRows = SymmetricColumns::kRows;
  Rng rng(seed);
  Group group(world);
  SymmetricColumns columns(world);
  std::vector<bool> stores;  // [round][rank]
  for (int i = 0; i < kRounds * world; ++i) stores.push_back(rng.below(2) == 0);
  std::vector<bool> stay, gather_then;  // [round]
  for (int i = 0; i < kRounds; ++i) {
    stay.push_back(rng.below(3) == 0);
    gather_then.push_back(stay.back() && rng.below(2) == 0);
  }
  std::vector<int32_t> ended(static_cast<size_t>(world)), wrong(static_cast<size_t>(world));
  const emulator::Launch launch{
      .grid = world * kCtas, .block = kThreads, .seed = seed, .resident = world * kCtas};
  ASSERT_NO_THROW(emulator::launch(launch, [&] {
    const int rank = static_cast<int>(blockIdx.x) / kCtas,
              cta = static_cast<int>(blockIdx.x) % kCtas;
    const int thread = cta * kThreads + static_cast<int>(threadIdx.x);
    int32_t* const own_ended = &ended[static_cast<size_t>(rank)];
    int32_t kernels = 0;
    for (int round = 0; round < kRounds; ++round) {
      const bool stays = stay[static_cast<size_t>(round)];
      const bool stored = stores[static_cast<size_t>(round * world + rank)];
      for (int row = thread; row < kRows; row += kCtas * kThreads)
        for (int r = 0; r < world; ++r)
          if ((stored && !stays) || r == rank)
            columns.half(r, round)[row * world + rank] = value(round, row, rank);
      next_kernel(own_ended, ++kernels * kCtas);
      const ExchangeParams p = columns.params(group, rank, round, stored || stays);
      if (!stays || cta == 0) exchange::exchange<uint16_t>(p, cta, stays ? 1 : kCtas);
      next_kernel(own_ended, ++kernels * kCtas);
      const bool gathers = gather_then[static_cast<size_t>(round)];
      if (gathers) {
        exchange::exchange<uint16_t>(columns.params(group, rank, round, false), cta, kCtas);
        next_kernel(own_ended, ++kernels * kCtas);
      }
      for (int i = thread; i < kRows * world; i += kCtas * kThreads)
        if (columns.half(stays && !gathers ? i % world : rank, round)[i] !=
            value(round, i / world, i % world))
          ptx::add_release(&wrong[static_cast<size_t>(rank)], 1);
      next_kernel(own_ended, ++kernels * kCtas);
    }
  }));
  for (const int32_t count : wrong) EXPECT_EQ(count, 0);
}

TEST(ExchangeEmulated, ColumnsInSymmetricMemoryNeedNoWindow) {
  for (const int world : {2, 3, 5}) {
    for (uint64_t seed = 0; seed < 12; ++seed)
      check_symmetric(world, 10 * static_cast<uint64_t>(world) + seed);
  }
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

// One rank's kernels: the exchanged values are written by the kernel before, and read by the one
// after, which starts early. What the other rank gives came before, with a number that is high
// enough for all.
void check_stream(uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr int kRounds = 4;
  Rng rng(seed);
  Group group(2);
  Case c = words_case(rng, 2, 7, Kind::kGather);
  const ExchangeParams p = group.params(c, 0);
  std::vector<uint16_t> own = c.of_rank[0];
  for (ptx::NumberedWord& word : group.words[0]) word = {0x0403020104030201, kRounds};
  std::vector<std::vector<uint16_t>> got(kRounds, std::vector<uint16_t>(own.size()));
  std::vector<emulator::Kernel> kernels;
  const emulator::Launch one{.pdl = true};
  const auto strided = [](size_t size, const auto& body) {
    ptx::pdl_start();
    for (size_t i = threadIdx.x; i < size; i += blockDim.x) body(i);
  };
  for (int round = 0; round < kRounds; ++round) {
    kernels.push_back({one, [&, round] {
                         strided(own.size(), [&](size_t i) {
                           c.of_rank[0][i] = static_cast<uint16_t>(own[i] + round);
                         });
                       }});
    const int ctas = 1 + static_cast<int>(rng.below(kCtas));
    kernels.push_back(
        {{.grid = ctas, .block = kThreads, .pdl = true, .resident = kCtas}, [&, ctas] {
           exchange::exchange_words<uint16_t>(p, true, static_cast<int>(blockIdx.x), ctas);
         }});
    kernels.push_back({one, [&, round] {
                         auto& to = got[static_cast<size_t>(round)];
                         strided(to.size(), [&](size_t i) { to[i] = c.of_rank[0][i]; });
                       }});
  }
  ASSERT_NO_THROW(emulator::launch_stream(kernels, seed));
  for (const int64_t done : group.done[0]) EXPECT_EQ(done, kRounds);
  const size_t stride = static_cast<size_t>(c.columns) + 2;
  const ExchangedTensor& t = p.tensors[0];
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < own.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i % stride) - 1;
      const bool of_other = column >= t.begin[1] && column < t.columns;
      const auto word = static_cast<uint16_t>((column - t.begin[1]) % 2 == 0 ? 0x0201 : 0x0403);
      ASSERT_EQ(got[static_cast<size_t>(round)][i],
                of_other ? word : static_cast<uint16_t>(own[i] + round))
          << "round " << round << ", column " << column;
    }
  }
  // What the other rank got last.
  const ptx::NumberedWord* const sent = group.words[1].data() + kRounds % 2 * PeerWords::kInBuffer;
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t w = 0; w < t.count[0] / 4; ++w)
      ASSERT_EQ(sent[i * t.columns / 4 + w].number, kRounds) << i << " " << w;
}

TEST(ExchangeEmulated, TheNextKernelMayStartEarly) {
  for (uint64_t seed = 0; seed < 16; ++seed) check_stream(seed);
}

TEST(ExchangeEmulated, AGridHasAThreadForEachWord) {
  for (const int64_t words : {1, 128, 129, 1024, 16384, 16385, 40000, 65536, 131072}) {
    const exchange::WordsGrid grid = exchange::words_grid(words, exchange::kCtas);
    EXPECT_LE(grid.ctas, exchange::kCtas);
    EXPECT_LE(grid.threads, exchange::kThreads);
    EXPECT_TRUE(grid.ctas * grid.threads >= words || words > 65536) << words;
    EXPECT_LT((grid.ctas - 1) * grid.threads, words) << "a CTA without words";
  }
  EXPECT_EQ(exchange::words_grid(100000, 8).ctas, 8) << "ranks that share a GPU";
}

TEST(ExchangeEmulated, SlotsBringTheSame) {
  for (const int world : {1, 2, 3, 5}) {
    for (uint64_t seed = 0; seed < 20; ++seed)
      check_slots(world, 1000 * static_cast<uint64_t>(world) + seed);
  }
}

}  // namespace
}  // namespace dsv4
