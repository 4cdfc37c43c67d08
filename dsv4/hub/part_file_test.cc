// Pieces in any order, kills at any place, and damaged records: what the file says that it has, it
// has.

#include "dsv4/hub/part_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dsv4/base/rng.h"
#include "dsv4/hub/file_lock.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::TempFolder;

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<std::byte> random_bytes(int64_t size) {
  Rng rng(testing::UnitTest::GetInstance()->random_seed() + size);
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.bits() & 0xffu);
  return bytes;
}

std::span<const std::byte> slice(const std::vector<std::byte>& of, int64_t begin, int64_t end) {
  return std::span(of).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

std::vector<std::byte> read_back(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(PartFile, PiecesOfAFile) {
  EXPECT_EQ(PartFile::piece_bytes(0), 4 * kMiB);
  EXPECT_EQ(PartFile::piece_bytes(128 * kMiB), 4 * kMiB);
  EXPECT_EQ(PartFile::piece_bytes(128 * kMiB + 32), 5 * kMiB);
  EXPECT_EQ(PartFile::piece_bytes(int64_t{1} << 40), 64 * kMiB);
}

// Random pieces of random pieces, with the file closed (a kill) and opened again now and then: it
// lost at most what was not yet recorded, and what it reports is there.
TEST(PartFile, SurvivesKillsAtAnyPlace) {
  const TempFolder folder;
  const std::string path = folder.path() + "/part", target = folder.path() + "/whole";
  const int64_t size = 9 * kMiB + 12345;
  const std::vector<std::byte> want = random_bytes(size);
  Rng rng(testing::UnitTest::GetInstance()->random_seed());
  auto part = std::make_unique<PartFile>(path, size);
  ASSERT_EQ(part->num_pieces(), 3);
  while (part->total_received() < size) {
    const int64_t before = part->total_received();
    if (rng.bits() % 8 == 0) {
      part.reset();
      part = std::make_unique<PartFile>(path, size);
      EXPECT_LE(before - part->total_received(), 3 * PartFile::kRecordEvery);
      std::vector<std::byte> have(static_cast<size_t>(size));
      for (int64_t i = 0; i < part->num_pieces(); ++i) {
        const int64_t begin = part->begin(i), end = begin + part->received(i);
        part->read(begin, std::span(have).subspan(static_cast<size_t>(begin),
                                                  static_cast<size_t>(end - begin)));
        EXPECT_TRUE(std::ranges::equal(slice(have, begin, end), slice(want, begin, end)));
      }
    }
    const auto piece = static_cast<int64_t>(rng.bits() % 3);
    const int64_t at = part->begin(piece) + part->received(piece);
    const int64_t bytes = std::min<int64_t>(rng.bits() % (2 * kMiB), part->end(piece) - at);
    part->write(piece, at, slice(want, at, at + bytes));
    EXPECT_FALSE(std::filesystem::exists(target));
  }
  part->commit(target);
  EXPECT_EQ(read_back(target), want);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PartFile, EmptyFile) {
  const TempFolder folder;
  PartFile part(folder.path() + "/part", 0);
  EXPECT_EQ(part.num_pieces(), 0);
  part.commit(folder.path() + "/whole");
  EXPECT_EQ(std::filesystem::file_size(folder.path() + "/whole"), 0u);
}

TEST(PartFile, StartsOverWhenTheRecordIsNotItsOwn) {
  const TempFolder folder;
  const std::string path = folder.path() + "/part";
  const std::vector<std::byte> bytes = random_bytes(1000);
  const auto received = [&](int64_t size) { return PartFile(path, size).total_received(); };
  const auto fill = [&] {
    PartFile part(path, 1000);
    part.restart();
    part.write(0, 0, bytes);
  };
  fill();
  EXPECT_EQ(received(1000), 1000);
  EXPECT_EQ(received(1001), 0) << "another size";
  fill();
  std::filesystem::resize_file(path, 1000);
  EXPECT_EQ(received(1000), 0) << "no record";
  for (const int64_t byte :
       {0, 8, 16, 23}) {  // the mark, bytes of a piece, the entry's first, last
    fill();
    {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(1000 + byte);
      file.put('\x7f');
    }
    EXPECT_LE(received(1000), byte == 16 ? 1000 : 0) << byte;
  }
}

TEST(PartFile, DoesNotFollowALink) {
  const TempFolder folder;
  const std::string other = folder.path() + "/other", path = folder.path() + "/part";
  std::ofstream(other) << "mine";
  std::filesystem::create_symlink(other, path);
  EXPECT_NE("", test::error_of(ErrorCode::kIo, [&] { PartFile(path, 10); }));
  EXPECT_EQ(std::filesystem::file_size(other), 4u);
}

TEST(FileLock, HasOneHolder) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lock";
  std::unique_ptr<FileLock> first = FileLock::try_lock(path);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(FileLock::try_lock(path), nullptr);
  first.reset();
  EXPECT_NE(FileLock::try_lock(path), nullptr);
}

}  // namespace
}  // namespace dsv4
