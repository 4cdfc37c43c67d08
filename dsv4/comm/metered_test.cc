// What a rank counts of its exchanges: bytes of the others' values, and time that grows.

#include "dsv4/comm/metered.h"

#include <gtest/gtest.h>

#include <array>

#include "dsv4/comm/rank_team.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int kWorld = 3;
constexpr int64_t kRows = 5, kColumns = 10;  // of ranks 0, 1, 2: 2, 4, 4

TEST(Metered, CountsWhatOthersGive) {
  std::array<ExchangeCounts, kWorld> counts;
  RankTeam team(kWorld, std::chrono::seconds(20));
  team.run([&](Communicator& self) {
    ExchangeCounts& own = counts[static_cast<size_t>(self.id().rank)];
    Metered ranks(self, own);
    const ColumnEnds ends = column_ends(kWorld, kColumns, 2);
    const Buffer f32(DType::kF32, {kRows, kColumns}), u8(DType::kU8, {kRows + 1, kColumns});
    const Buffer owners(DType::kI32, {kRows});
    const Gathered both[] = {{f32, ends}, {u8, ends}};
    ranks.gather(both, {"two tensors"});
    const int64_t width = ends[static_cast<size_t>(self.id().rank)] -
                          first_column(ends, self.id().rank),
                  received = (kColumns - width) * (4 * kRows + kRows + 1);
    EXPECT_EQ(own.received_bytes, received);
    const int64_t begin = first_column(ends, self.id().rank);
    ranks.to_root(f32.view().slice(1, begin, begin + width), f32, ends, {"to the root"});
    const int64_t of_root = self.id().rank == 0 ? (kColumns - width) * 4 * kRows : 0;
    EXPECT_EQ(own.received_bytes, received + of_root);
    ranks.gather_rows(f32, owners, {"rows"});
    EXPECT_EQ(own.received_bytes, received + of_root + 4 * kRows * kColumns);
    // Rows by id: as if the ids of 0 .. 9 were equally likely.
    const Gathered rows[] = {{f32, ends, owners}};
    ranks.gather(rows, {"rows of ids"});
    EXPECT_EQ(own.received_bytes,
              received + of_root + 4 * kRows * kColumns + 4 * kRows * (kColumns - width));
    const int64_t time = own.nanoseconds;
    EXPECT_GT(time, 0);
    ranks.gather(both, {"two tensors"});
    EXPECT_GT(own.nanoseconds, time);
  });
}

}  // namespace
}  // namespace dsv4
