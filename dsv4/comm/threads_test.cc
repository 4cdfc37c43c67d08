// Exchanges of ranks that are threads: every rank ends with the values that the owners wrote, for
// odd sizes, empty shares and ranks that are late by random times; a rank that is missing, at
// another exchange, or that brings another shape, ends all of them.

#include "dsv4/comm/threads.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "dsv4/base/rng.h"
#include "dsv4/comm/communicator.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{20000};  // under a sanitizer on a busy machine
constexpr float kUnwritten = -1;

// The value of an element, known to the test alone.
float value(int64_t exchange, int64_t row, int64_t column) {
  return static_cast<float>(exchange * 1000000 + row * 1000 + column);
}

// [rows, n] f32 inside wider rows, all of it unwritten.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t n) : memory_(DType::kF32, {rows, n + 3}) {
    std::fill_n(memory_.as<float>(), rows * (n + 3), kUnwritten);
    view_ = memory_.view().slice(1, 1, n + 1);
  }
  const TensorView& view() const { return view_; }
  float& at(int64_t row, int64_t column) { return view_.row<float>(row)[column]; }

 private:
  Buffer memory_;
  TensorView view_;
};

// Runs `body` on a thread for each rank and returns what each of them threw.
std::vector<std::string> on_ranks(ThreadRanks& group,
                                  const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(group.world()));
  std::vector<std::thread> threads;
  for (int r = 0; r < group.world(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(group.rank(r));
      } catch (const RanksStopped& error) {
        errors[static_cast<size_t>(r)] = error.what();
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = error.what();
        group.abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void sleep_sometimes(Rng& rng) {
  if (rng.below(3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(300)));
}

TEST(ThreadRanks, GatherGivesEveryRankEveryColumn) {
  Rng sizes(1);
  for (int world = 1; world <= 8; ++world) {
    const int64_t rows = sizes.below(5), n = 1 + sizes.below(40), wide = 1 + sizes.below(300);
    ThreadRanks group(world, kLong);
    const auto errors = on_ranks(group, [&](Communicator& ranks) {
      Rng rng(static_cast<uint64_t>(ranks.id().rank));
      const ColumnEnds ends = column_ends(world, n, 3), wide_ends = column_ends(world, wide, 128);
      for (int64_t step = 0; step < 20; ++step) {
        Matrix a(rows, n), b(rows + 1, wide);
        const auto own = ranks.id().rows(n, 3), wide_own = ranks.id().rows(wide, 128);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = own.begin; c < own.end; ++c) a.at(i, c) = value(step, i, c);
        for (int64_t i = 0; i < rows + 1; ++i)
          for (int64_t c = wide_own.begin; c < wide_own.end; ++c) b.at(i, c) = value(step, i, c);
        sleep_sometimes(rng);
        const Gathered both[] = {{a.view(), ends}, {b.view(), wide_ends}};
        ranks.gather(both, {"two tensors", step});
        sleep_sometimes(rng);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < n; ++c) ASSERT_EQ(a.at(i, c), value(step, i, c));
        for (int64_t i = 0; i < rows + 1; ++i) {
          for (int64_t c = 0; c < wide; ++c) ASSERT_EQ(b.at(i, c), value(step, i, c));
          ASSERT_EQ(b.at(i, -1), kUnwritten) << "outside of the tensor";
          ASSERT_EQ(b.at(i, wide), kUnwritten) << "outside of the tensor";
        }
      }
    });
    expect_none(errors);
  }
}

TEST(ThreadRanks, RootGetsTheColumnsAndOthersNothing) {
  for (const int world : {1, 2, 3, 8}) {
    const int64_t rows = 3, n = 37;
    ThreadRanks group(world, kLong);
    const auto errors = on_ranks(group, [&](Communicator& ranks) {
      Rng rng(static_cast<uint64_t>(ranks.id().rank));
      const bool root = ranks.id().rank == 0;
      const auto own = ranks.id().rows(n, 5);
      for (int64_t step = 0; step < 20; ++step) {
        Matrix all(rows, n), part(rows, own.count());
        const TensorView mine = root ? all.view().slice(1, own.begin, own.end) : part.view();
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = own.begin; c < own.end; ++c)
            mine.row<float>(i)[c - own.begin] = value(step, i, c);
        sleep_sometimes(rng);
        ranks.to_root(mine, all.view(), column_ends(world, n, 5), {"logits"});
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < n; ++c)
            ASSERT_EQ(all.at(i, c), root ? value(step, i, c) : kUnwritten);
      }
    });
    expect_none(errors);
  }
}

TEST(ThreadRanks, RowsComeFromTheirOwners) {
  for (const int world : {1, 2, 5, 8}) {
    const std::vector<int32_t> owners = {0, 0, 1, 0, 4, 1, 7, 2, 2};
    const Buffer of_world(DType::kI32, {std::ssize(owners)});
    for (int64_t i = 0; i < std::ssize(owners); ++i)
      of_world.as<int32_t>()[i] = owners[static_cast<size_t>(i)] % world;
    ThreadRanks group(world, kLong);
    const auto errors = on_ranks(group, [&](Communicator& ranks) {
      const auto rows = std::ssize(owners);
      Matrix all(rows, 7);
      for (int64_t i = 0; i < rows; ++i) {
        if (of_world.as<int32_t>()[i] != ranks.id().rank) continue;
        for (int64_t c = 0; c < 7; ++c) all.at(i, c) = value(0, i, c);
      }
      ranks.gather_rows(all.view(), of_world.view(), {"embedding"});
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < 7; ++c) ASSERT_EQ(all.at(i, c), value(0, i, c));
    });
    expect_none(errors);
  }
}

// Runs of rows, of which some are empty, as one row that is moved whole or in pieces, some of one
// value and some across the end of a run.
TEST(ThreadRanks, RunsOfRowsComeFromTheirOwners) {
  for (const int world : {1, 2, 3, 8}) {
    for (const int64_t bytes : {int64_t{4}, int64_t{44}, int64_t{100}, kMostRowBytes}) {
      constexpr int64_t kRows = 19, kWidth = 5;
      ThreadRanks group(world, kLong);
      const auto errors = on_ranks(group, [&](Communicator& ranks) {
        const ColumnEnds ends = column_ends(world, kRows, 4);
        const Buffer all(DType::kF32, {kRows, kWidth});
        std::fill_n(all.as<float>(), kRows * kWidth, kUnwritten);
        const auto own = ranks.id().rows(kRows, 4);
        for (int64_t i = own.begin; i < own.end; ++i)
          for (int64_t c = 0; c < kWidth; ++c) all.view().row<float>(i)[c] = value(3, i, c);
        gather_runs_of_rows(ranks, all, ends, {"picks"}, bytes);
        for (int64_t i = 0; i < kRows; ++i)
          for (int64_t c = 0; c < kWidth; ++c)
            ASSERT_EQ(all.view().row<float>(i)[c], value(3, i, c)) << i;
      });
      expect_none(errors);
    }
  }
}

// Rows by ids, of which some belong to no rank, beside columns.
TEST(ThreadRanks, RowsComeFromTheRanksOfTheirIds) {
  for (const int world : {1, 2, 3, 5, 8}) {
    const std::vector<int32_t> of_rows = {3, -1, 0, 6, 99, 2, 5, 1, 4, 7};
    const auto rows = std::ssize(of_rows);
    const Buffer ids(DType::kI32, {rows});
    std::copy(of_rows.begin(), of_rows.end(), ids.as<int32_t>());
    ThreadRanks group(world, kLong);
    const auto errors = on_ranks(group, [&](Communicator& ranks) {
      const int self = ranks.id().rank;
      const ColumnEnds id_ends = column_ends(world, 7, 1), ends = column_ends(world, 9, 2);
      Matrix all(rows, 7), columns(2, 9);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t id = of_rows[static_cast<size_t>(i)];
        const auto own = ranks.id().rows(7, 1);
        const bool mine = id < 0 || id >= 7 ? self == 0 : own.begin <= id && id < own.end;
        for (int64_t c = 0; mine && c < 7; ++c) all.at(i, c) = value(1, i, c);
      }
      for (int64_t c = first_column(ends, self); c < ends[static_cast<size_t>(self)]; ++c)
        columns.at(0, c) = columns.at(1, c) = value(2, 0, c);
      const Gathered both[] = {{all.view(), id_ends, ids.view()}, {columns.view(), ends}};
      ranks.gather(both, {"rows and columns"});
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < 7; ++c) ASSERT_EQ(all.at(i, c), value(1, i, c)) << i;
      for (int64_t c = 0; c < 9; ++c) ASSERT_EQ(columns.at(1, c), value(2, 0, c));
    });
    expect_none(errors);
  }
}

void exchange(Communicator& ranks, const Place& place, int64_t rows = 1) {
  Matrix a(rows, 8);
  const ColumnEnds ends = column_ends(ranks.id().world, 8, 1);
  const Gathered one[] = {{a.view(), ends}};
  ranks.gather(one, place);
}

TEST(ThreadRanks, ARankThatDoesNotComeIsNamed) {
  ThreadRanks group(4, milliseconds(100));
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_ranks(group, [](Communicator& ranks) {
    exchange(ranks, {"gather u", 0});
    if (ranks.id().rank == 2) return;
    exchange(ranks, {"gather h", 17});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  for (const size_t r : {0, 1, 3})
    EXPECT_EQ(errors[r], "no answer from rank 2 for 0.1 s (gather h, layer 17)");
  EXPECT_EQ(errors[2], "");
  EXPECT_THROW(exchange(group.rank(2), {"gather h", 17}), RanksStopped) << "later calls throw too";
}

TEST(ThreadRanks, AbortEndsThoseThatWait) {
  ThreadRanks group(3, kLong);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_ranks(group, [](Communicator& ranks) {
    if (ranks.id().rank == 1) fail(ErrorCode::kResource, "out of memory");
    exchange(ranks, {"gather u", 0});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  for (const std::string& error : errors) EXPECT_EQ(error, "out of memory");
  group.abort("a later reason");
  EXPECT_EQ(group.why(), "out of memory");
}

TEST(ThreadRanks, DifferentExchangesOrShapesAreErrors) {
  ThreadRanks places(2, kLong), shapes(2, kLong);
  const auto at = on_ranks(places, [](Communicator& ranks) {
    exchange(ranks, {ranks.id().rank == 0 ? "gather u" : "gather h", 3});
  });
  EXPECT_EQ(
      places.why().find("\"gather h, layer 3\", rank 0 at \"gather u, layer 3\"") != at[0].npos,
      true)
      << places.why();
  on_ranks(shapes, [](Communicator& ranks) { exchange(ranks, {"gather u"}, 1 + ranks.id().rank); });
  EXPECT_NE(shapes.why().find("rank 1 brings [2, 8] F32, rank 0 [1, 8] F32"), std::string::npos)
      << shapes.why();
}

TEST(Single, MovesNothing) {
  Single alone({1, 3});
  EXPECT_EQ(alone.id().rank, 1);
  Matrix a(2, 8);
  const ColumnEnds ends = column_ends(3, 8, 1);
  const Gathered one[] = {{a.view(), ends}};
  alone.gather(one, {"gather u"});
  EXPECT_EQ(a.at(1, 7), kUnwritten);
}

}  // namespace
}  // namespace dsv4
