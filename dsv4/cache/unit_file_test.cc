// A unit comes back from its file with every byte, or the file is refused: whatever bit or length
// of it has changed.

#include "dsv4/cache/unit_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

// A unit whose bytes lie in pieces of odd sizes.
struct Unit {
  UnitHeader header;
  std::vector<std::byte> blocks, checkpoint;
  UnitPieces pieces;

  explicit Unit(uint64_t seed, int64_t run = 12) {
    Rng rng(seed);
    header.layout = {.step = 4, .block_bytes = 37, .checkpoint_bytes = 101};
    header.run = run;
    header.position = run + 8;  // after another unit
    for (auto* bytes : {&header.key.bytes, &header.parent.bytes, &header.salt.bytes})
      std::ranges::generate(*bytes, [&] { return static_cast<uint8_t>(rng.below(256)); });
    header.fingerprint = digest_of("a model");
    blocks.resize(static_cast<size_t>(header.blocks() * header.layout.block_bytes));
    checkpoint.resize(101);
    for (int64_t i = 0; i < run; ++i) pieces.ids.push_back(static_cast<int32_t>(rng.below(1000)));
    for (auto* bytes : {&blocks, &checkpoint})
      std::ranges::generate(*bytes, [&] { return static_cast<std::byte>(rng.below(256)); });
    cut(blocks, 10, pieces.blocks);
    cut(checkpoint, 64, pieces.checkpoint);
  }
  static void cut(std::vector<std::byte>& bytes, size_t at, std::vector<std::span<std::byte>>& to) {
    to = {std::span(bytes).first(at), std::span(bytes).subspan(at)};
  }
  bool operator==(const Unit& other) const {
    return header == other.header && blocks == other.blocks && checkpoint == other.checkpoint &&
           pieces.ids == other.pieces.ids;
  }
};

// What a reader that knows `like` finds in the file.
Unit read(const std::string& path, const Unit& like) {
  Unit found(77, like.header.run);
  found.header = read_unit_header(path);
  read_unit(path, like.header, found.pieces);
  return found;
}

class UnitFileTest : public testing::Test {
 protected:
  test::TempFolder folder_;
  const std::string path_ = folder_.file("unit");
};

TEST_F(UnitFileTest, ComesBackWithEveryByte) {
  for (const int64_t run : {4, 12, 4096}) {
    const Unit unit(static_cast<uint64_t>(run), run);
    write_unit(path_, unit.header, unit.pieces);
    EXPECT_TRUE(read(path_, unit) == unit) << run << " tokens";
    EXPECT_EQ(folder_.list().size(), 1u) << "no temporary file stays";
    struct stat info {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
}

TEST_F(UnitFileTest, RefusesEveryFlippedBit) {
  const Unit unit(3);
  write_unit(path_, unit.header, unit.pieces);
  const std::string whole = read_text_file(path_);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    folder_.write("unit", changed);
    EXPECT_THROW(read(path_, unit), Error) << "bit " << bit;
  }
}

TEST_F(UnitFileTest, RefusesEveryOtherLength) {
  const Unit unit(4);
  write_unit(path_, unit.header, unit.pieces);
  const std::string whole = read_text_file(path_);
  for (size_t length = 0; length < whole.size(); ++length) {
    folder_.write("unit", whole.substr(0, length));
    EXPECT_THROW(read(path_, unit), Error) << length << " bytes";
  }
  folder_.write("unit", whole + "x");
  EXPECT_THROW(read(path_, unit), Error);
  folder_.write("unit", whole.substr(0, whole.size() - 16) + whole);
  EXPECT_THROW(read(path_, unit), Error);
}

TEST_F(UnitFileTest, RefusesAnotherText) {
  const Unit unit(5), other(6);
  write_unit(path_, unit.header, unit.pieces);
  EXPECT_THROW(read(path_, other), Error) << "keys and salts differ";
  Unit model(5);
  model.header.fingerprint = digest_of("another model");
  EXPECT_THROW(read(path_, model), Error);
}

TEST_F(UnitFileTest, AFailedWriteLeavesTheOldFile) {
  const Unit unit(7);
  write_unit(path_, unit.header, unit.pieces);
  EXPECT_THROW(write_unit(folder_.file("missing/unit"), unit.header, unit.pieces), Error);
  Unit wrong(7);
  wrong.header.run = 16;  // more than its pieces hold
  EXPECT_THROW(write_unit(path_, wrong.header, wrong.pieces), Error);
  EXPECT_TRUE(read(path_, unit) == unit);
  EXPECT_THROW(read_unit_header(folder_.path()), Error) << "a folder";
}

TEST_F(UnitFileTest, APipeIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  alarm(60);  // reading it would wait for a writer
  EXPECT_THROW(read_unit_header(path_), Error);
  alarm(0);
}

TEST(PrefixKeyTest, NamesTheWholeText) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto keys_of = [](std::string_view salt, std::span<const int32_t> text) {
    PrefixChain chain(digest_of("model"), salt, 4);
    chain.extend(text.first(text.size() / 2));  // in two calls
    chain.extend(text);
    return std::vector(chain.keys().begin(), chain.keys().end());
  };
  const std::vector<PrefixKey> keys = keys_of("", ids);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[1], next_key(keys[0], std::span(ids).subspan(4, 4)));
  std::vector<int32_t> other = ids;
  other[0] = 7;
  EXPECT_NE(keys_of("", other)[1], keys[1]) << "the step before differs";
  EXPECT_NE(keys_of("salt", ids)[0], keys[0]);
  EXPECT_EQ(digest_of("abc")[0], 0xba) << "FIPS 180-2, B.1";
  EXPECT_EQ(keys[0].hex().size(), 32u);
}

}  // namespace
}  // namespace dsv4
