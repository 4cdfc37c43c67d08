// Exchanges of ranks that are GPUs, or streams of one GPU: what each rank ends with, eager and in
// graphs that are replayed with other values; a rank that does not come, and an end from outside.

#include "dsv4/comm/device_ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "dsv4/base/rng.h"
#include "dsv4/comm/threads.h"
#include "dsv4/device/current_device.h"
#include "dsv4/device/device.h"
#include "dsv4/device/graph.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/gpu.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kWindow = 1 << 16;
constexpr milliseconds kLong{10000};

// A device for each rank; they share GPUs where there are fewer.
class DeviceRanksTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
    const auto gpus = static_cast<int>(list_devices().size());
    for (int r = 0; r < world(); ++r) owned_.push_back(std::make_unique<Device>(r % gpus));
  }
  int world() const { return GetParam(); }
  std::vector<Device*> devices() const {
    std::vector<Device*> all;
    for (const auto& device : owned_) all.push_back(device.get());
    return all;
  }
  void wait() const {
    for (const auto& device : owned_) device->wait();
  }

  std::vector<std::unique_ptr<Device>> owned_;
};

int32_t value(int64_t step, int64_t row, int64_t column) {
  return static_cast<int32_t>(step * 1000003 + row * 4099 + column);
}

// [rows, n] I32 of every rank, of which each has written what it owns.
struct Tensors {
  Tensors(const std::vector<Device*>& devices, int64_t rows, int64_t n) : devices_(devices) {
    for (Device* device : devices) {
      make_current(*device);
      of_rank.emplace_back(DType::kI32, std::initializer_list<int64_t>{rows, n}, device->memory());
    }
  }
  template <class Owns>
  void write(int64_t step, const Owns& owns) {
    for (size_t r = 0; r < of_rank.size(); ++r) {
      const TensorView& view = of_rank[r].view();
      std::vector<int32_t> own(static_cast<size_t>(view.numel()), -1);
      for (int64_t i = 0; i < view.numel(); ++i) {
        const int64_t row = i / view.dim(1), column = i % view.dim(1);
        if (owns(static_cast<int>(r), row, column))
          own[static_cast<size_t>(i)] = value(step, row, column);
      }
      make_current(*devices_[r]);
      devices_[r]->memory().upload(view.data, reinterpret_cast<const std::byte*>(own.data()),
                                   view.bytes());
    }
  }
  // How many elements of a rank are not those of the step.
  int64_t wrong(size_t r, int64_t step) const {
    const TensorView& view = of_rank[r].view();
    std::vector<int32_t> got(static_cast<size_t>(view.numel()));
    make_current(*devices_[r]);
    devices_[r]->memory().download(reinterpret_cast<std::byte*>(got.data()), view.data,
                                   view.bytes());
    int64_t count = 0;
    for (int64_t i = 0; i < view.numel(); ++i)
      count += got[static_cast<size_t>(i)] != value(step, i / view.dim(1), i % view.dim(1));
    return count;
  }

  std::vector<Buffer> of_rank;

 private:
  std::vector<Device*> devices_;
};

TEST_P(DeviceRanksTest, GatherGivesEveryRankEveryColumn) {
  DeviceRanks group(devices(), kWindow, kLong);
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
  for (int64_t step = 0; step < 40; ++step) {
    // Some are larger than a window, and some have no rows.
    const int64_t rows = rng.below(4) == 0 ? rng.below(300) : rng.below(4);
    const int64_t n = 1 + rng.below(2000), unit = rng.below(2) == 0 ? 1 : 128;
    const ColumnEnds ends = column_ends(world(), n, unit);
    Tensors all(devices(), rows, n);
    all.write(step, [&](int r, int64_t, int64_t column) {
      return column >= first_column(ends, r) && column < ends[static_cast<size_t>(r)];
    });
    for (int r = 0; r < world(); ++r) {
      const Gathered one[] = {{all.of_rank[static_cast<size_t>(r)].view(), ends}};
      group.rank(r).gather(one, {"columns", step});
    }
    wait();
    ASSERT_NO_THROW(group.check());
    for (size_t r = 0; r < all.of_rank.size(); ++r)
      ASSERT_EQ(all.wrong(r, step), 0) << "rank " << r << ", [" << rows << ", " << n << "]";
  }
}

// Two tensors in symmetric memory, of which ranks store their columns on all ranks by themselves,
// or leave that to the exchange. Halves are used in turn.
TEST_P(DeviceRanksTest, SymmetricMemoryHasEveryColumn) {
  if (world() == 1) GTEST_SKIP() << "alone";
  DeviceRanks group(devices(), kWindow, kLong);
  EXPECT_EQ(group.rank(0).symmetric(), nullptr);
  constexpr int64_t kHalfBytes = 1 << 20;
  for (int r = 0; r < world(); ++r) group.make_symmetric(r, {kHalfBytes, kHalfBytes + 100});
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
  for (int64_t step = 0; step < 40; ++step) {
    const int64_t rows = 1 + rng.below(60), n = 1 + rng.below(900);
    const ColumnEnds ends = column_ends(world(), n, 1 + rng.below(200));
    const auto half = step % 2 == 0 ? SymmetricHalf::kInner : SymmetricHalf::kOutput;
    std::vector<TensorView> first, second;
    std::vector<bool> stores;
    for (int r = 0; r < world(); ++r) {
      SymmetricMemory& own = *group.rank(r).symmetric();
      const Scratch::Scope scope(own.half(half));
      first.push_back(own.half(half).take(DType::kI32, {rows, n}));
      second.push_back(own.half(half).take(DType::kI32, {3, n}));
      stores.push_back(rng.below(2) == 0);
      ASSERT_EQ(own.mirrors.count, world() - 1);
    }
    const auto owner = [&](int64_t column) { return Gathered::owner_of(ends, column); };
    for (int r = 0; r < world(); ++r) {
      for (auto* tensors : {&first, &second}) {
        const TensorView& view = (*tensors)[static_cast<size_t>(r)];
        std::vector<int32_t> known(static_cast<size_t>(view.numel()), -1);
        for (int64_t i = 0; i < view.numel(); ++i)
          if (owner(i % n) == r || stores[static_cast<size_t>(owner(i % n))])
            known[static_cast<size_t>(i)] = value(step, i / n, i % n);
        make_current(*owned_[static_cast<size_t>(r)]);
        owned_[static_cast<size_t>(r)]->memory().upload(
            view.data, reinterpret_cast<const std::byte*>(known.data()), view.bytes());
      }
    }
    wait();
    for (int r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      const Gathered both[] = {{.all = first[at], .ends = ends, .stored = stores[at]},
                               {.all = second[at], .ends = ends, .stored = stores[at]}};
      group.rank(r).gather(both, {"symmetric columns", step});
    }
    wait();
    ASSERT_NO_THROW(group.check());
    for (int r = 0; r < world(); ++r) {
      for (auto* tensors : {&first, &second}) {
        const TensorView& view = (*tensors)[static_cast<size_t>(r)];
        std::vector<int32_t> got(static_cast<size_t>(view.numel()));
        make_current(*owned_[static_cast<size_t>(r)]);
        owned_[static_cast<size_t>(r)]->memory().download(reinterpret_cast<std::byte*>(got.data()),
                                                          view.data, view.bytes());
        for (int64_t i = 0; i < view.numel(); ++i)
          ASSERT_EQ(got[static_cast<size_t>(i)], value(step, i / n, i % n))
              << "step " << step << " rank " << r << ", " << i / n << " " << i % n;
      }
    }
  }
}

// Runs of rows as one row, whole where it fits the window, else in pieces.
TEST_P(DeviceRanksTest, RunsOfRowsComeFromTheirOwners) {
  DeviceRanks group(devices(), kWindow, kLong);
  for (int64_t step = 0; step < 6; ++step) {
    const int64_t rows = step % 3 == 0 ? 1 : 37 * (1 + step), n = step % 2 == 0 ? 512 : 23;
    const ColumnEnds ends = column_ends(world(), rows, 16);
    Tensors all(devices(), rows, n);
    all.write(step, [&](int r, int64_t row, int64_t) {
      return row >= first_column(ends, r) && row < ends[static_cast<size_t>(r)];
    });
    for (int r = 0; r < world(); ++r)
      gather_runs_of_rows(group.rank(r), all.of_rank[static_cast<size_t>(r)], ends, {"runs", step},
                          kWindow);
    wait();
    ASSERT_NO_THROW(group.check());
    for (size_t r = 0; r < all.of_rank.size(); ++r)
      ASSERT_EQ(all.wrong(r, step), 0) << "rank " << r << ", [" << rows << ", " << n << "]";
  }
}

TEST_P(DeviceRanksTest, RootGetsTheColumnsAndRowsComeFromTheirOwners) {
  DeviceRanks group(devices(), kWindow, kLong);
  const int64_t rows = 9, n = 332;
  const ColumnEnds ends = column_ends(world(), n, 4);
  std::vector<int32_t> of_row;
  for (int64_t i = 0; i < rows; ++i) of_row.push_back(static_cast<int32_t>(i * i % world()));
  for (int64_t step = 0; step < 20; ++step) {
    Tensors columns(devices(), rows, n), whole(devices(), rows, n);
    columns.write(step, [&](int r, int64_t, int64_t column) {
      return column >= first_column(ends, r) && column < ends[static_cast<size_t>(r)];
    });
    whole.write(step,
                [&](int r, int64_t row, int64_t) { return of_row[static_cast<size_t>(row)] == r; });
    // Ranks other than the root store theirs from addresses that allow smaller units.
    std::vector<Buffer> owners, wider;
    for (int r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      make_current(*owned_[at]);
      owners.emplace_back(DType::kI32, std::initializer_list<int64_t>{rows}, owned_[at]->memory());
      owned_[at]->memory().upload(owners.back().view().data,
                                  reinterpret_cast<const std::byte*>(of_row.data()), rows * 4);
      const TensorView& all = columns.of_rank[at].view();
      const TensorView own = all.slice(1, first_column(ends, r), ends[at]);
      wider.emplace_back(DType::kI32, std::initializer_list<int64_t>{rows, own.dim(1) + 1},
                         owned_[at]->memory());
      const TensorView moved = wider.back().view().slice(1, 1, own.dim(1) + 1);
      cudaMemcpy2DAsync(moved.data, static_cast<size_t>(moved.row_stride()) * 4, own.data,
                        static_cast<size_t>(n) * 4, static_cast<size_t>(own.dim(1)) * 4,
                        static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, owned_[at]->stream());
      group.rank(r).to_root(r == 0 ? own : moved, all, ends, {"logits"});
      group.rank(r).gather_rows(whole.of_rank[at].view(), owners.back().view(), {"embedding"});
    }
    wait();
    ASSERT_NO_THROW(group.check());
    EXPECT_EQ(columns.wrong(0, step), 0);
    for (size_t r = 0; r < owners.size(); ++r) EXPECT_EQ(whole.wrong(r, step), 0) << "rank " << r;
    if (world() > 1) {
      EXPECT_GT(columns.wrong(1, step), 0) << "rank 1 got what is the root's";
    }
  }
}

// Rows by ids, more than a window has, beside columns: one exchange of a layer with whole experts.
TEST_P(DeviceRanksTest, RowsOfIdsBesideColumns) {
  DeviceRanks group(devices(), kWindow, kLong);
  Rng rng(7);
  const ColumnEnds id_ends = column_ends(world(), 11, 1), ends = column_ends(world(), 384, 128);
  for (int64_t step = 0; step < 20; ++step) {
    const int64_t tokens = 1 + rng.below(40), rows = 3 * tokens, n = 512;
    std::vector<int32_t> of_row;
    for (int64_t i = 0; i < rows; ++i) of_row.push_back(static_cast<int32_t>(rng.below(13)) - 1);
    Tensors whole(devices(), rows, n), columns(devices(), tokens, 384);
    whole.write(step, [&](int r, int64_t row, int64_t) {
      return Gathered::owner_of(id_ends, of_row[static_cast<size_t>(row)]) == r;
    });
    columns.write(step, [&](int r, int64_t, int64_t column) {
      return column >= first_column(ends, r) && column < ends[static_cast<size_t>(r)];
    });
    std::vector<Buffer> ids;
    for (int r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      make_current(*owned_[at]);
      ids.emplace_back(DType::kI32, std::initializer_list<int64_t>{rows}, owned_[at]->memory());
      owned_[at]->memory().upload(ids.back().view().data,
                                  reinterpret_cast<const std::byte*>(of_row.data()), rows * 4);
      const Gathered both[] = {{whole.of_rank[at].view(), id_ends, ids.back().view()},
                               {columns.of_rank[at].view(), ends}};
      group.rank(r).gather(both, {"y of experts", step});
    }
    wait();
    ASSERT_NO_THROW(group.check());
    for (size_t r = 0; r < ids.size(); ++r) {
      EXPECT_EQ(whole.wrong(r, step), 0) << "rank " << r;
      EXPECT_EQ(columns.wrong(r, step), 0) << "rank " << r;
    }
  }
}

TEST_P(DeviceRanksTest, GraphsAreReplayedWithOtherValues) {
  DeviceRanks group(devices(), kWindow, kLong);
  const int64_t rows = 3, n = 700;
  const ColumnEnds ends = column_ends(world(), n, 4);
  Tensors all(devices(), rows, n);
  std::vector<Graph> graphs;
  for (int r = 0; r < world(); ++r) {
    const auto at = static_cast<size_t>(r);
    make_current(*owned_[at]);
    graphs.push_back(Graph::capture(*owned_[at], [&] {
      for (int64_t layer = 0; layer < 20; ++layer) {
        const Gathered one[] = {{all.of_rank[at].view(), ends}};
        group.rank(r).gather(one, {"columns", layer});
      }
    }));
  }
  for (int64_t step = 0; step < 200; ++step) {
    all.write(step, [&](int r, int64_t, int64_t column) {
      return column >= first_column(ends, r) && column < ends[static_cast<size_t>(r)];
    });
    for (size_t r = 0; r < graphs.size(); ++r) {
      make_current(*owned_[r]);
      graphs[r].launch(*owned_[r]);
    }
    wait();
    ASSERT_NO_THROW(group.check());
    for (size_t r = 0; r < graphs.size(); ++r) ASSERT_EQ(all.wrong(r, step), 0) << "rank " << r;
  }
}

// In a graph that is replayed, the part of a rank in one exchange is what it got from its neighbor
// in the exchange before, so every value is passed on and no value comes twice in a row. The parts
// of one row are [part 0, part 1, ...]: exchange k has parts k to k + N - 1, of which rank r brings
// part k + r; only the last rank brings one that is new. DSV4_RANKS_EXCHANGES: how many exchanges.
TEST_P(DeviceRanksTest, ChainsOfExchangesPassValuesOn) {
  constexpr int64_t kLinks = 50;
  const char* const wanted = std::getenv("DSV4_RANKS_EXCHANGES");
  const int64_t replays = wanted == nullptr ? 20 : std::stoll(wanted) / kLinks;
  for (const int64_t width : {int64_t{64}, int64_t{63}, int64_t{2048}}) {
    DeviceRanks group(devices(), kWindow, kLong);
    const int64_t parts = kLinks + world() - 1;
    const ColumnEnds ends = column_ends(world(), width * world(), width);
    Tensors all(devices(), 1, width * parts);
    std::vector<Graph> graphs;
    for (int r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      make_current(*owned_[at]);
      graphs.push_back(Graph::capture(*owned_[at], [&] {
        const TensorView& row = all.of_rank[at].view();
        for (int64_t link = 0; link < kLinks; ++link) {
          const Gathered one[] = {{row.slice(1, link * width, (link + world()) * width), ends}};
          group.rank(r).gather(one, {"chain", link});
        }
      }));
    }
    for (int64_t step = 0; step < replays; ++step) {
      all.write(step, [&](int r, int64_t, int64_t column) {
        return column / width == r || (column / width >= world() && r == world() - 1);
      });
      for (size_t r = 0; r < graphs.size(); ++r) {
        make_current(*owned_[r]);
        graphs[r].launch(*owned_[r]);
      }
      wait();
      ASSERT_NO_THROW(group.check());
      for (size_t r = 0; r < graphs.size(); ++r)
        ASSERT_EQ(all.wrong(r, step), 0) << "rank " << r << ", width " << width << ", " << step;
    }
  }
}

TEST_P(DeviceRanksTest, ARankThatDoesNotComeIsNamed) {
  if (world() == 1) GTEST_SKIP() << "one rank";
  DeviceRanks group(devices(), kWindow, milliseconds(200));
  Tensors all(devices(), 1, 64);
  const ColumnEnds ends = column_ends(world(), 64, 1);
  const Gathered one[] = {{all.of_rank[0].view(), ends}};
  group.rank(0).gather(one, {"gather u", 17});
  wait();
  try {
    group.check();
    FAIL() << "no error";
  } catch (const RanksStopped& error) {
    EXPECT_NE(std::string(error.what()).find("for 0.2 s (gather u, layer 17)"), std::string::npos)
        << error.what();
  }
}

TEST_P(DeviceRanksTest, AbortEndsExchangesThatWait) {
  if (world() == 1) GTEST_SKIP() << "one rank";
  DeviceRanks group(devices(), kWindow, kLong);
  Tensors all(devices(), 1, 64);
  const ColumnEnds ends = column_ends(world(), 64, 1);
  const Gathered one[] = {{all.of_rank[0].view(), ends}};
  const auto begin = std::chrono::steady_clock::now();
  group.rank(0).gather(one, {"gather u", 17});
  group.abort();
  wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
  EXPECT_THROW(group.check(), RanksStopped);
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeviceRanksTest, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace dsv4
