// What other programs do with the folder of a running cache: no call ends in another exception than
// Error, and what runs in the thread of the store throws nothing.

#include "dsv4/cache/unit_folder.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "dsv4/base/error.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kSomeoneElse = 65534;

std::vector<fs::path> entries_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

TEST(UnitFolderTest, FoldersThatAreGoneAreNoEnd) {
  const test::TempFolder scratch;
  const std::string root = scratch.file("cache");
  UnitFolder folder(root, digest_of("a model"));
  for (const auto& entry : std::filesystem::directory_iterator(root))
    std::filesystem::remove(entry.path() / "bad");
  EXPECT_EQ(folder.shrink_others(0), 0);
  std::filesystem::remove_all(root);
  EXPECT_EQ(folder.shrink_others(0), 0);
  EXPECT_THROW(folder.scan({.step = 4, .block_bytes = 100, .checkpoint_bytes = 5000}), Error);
}

// Who could write the folder could put a text of his choice before another user's.
TEST(UnitFolderTest, FoldersThatOthersMayWriteAreRefused) {
  const test::TempFolder scratch;
  const std::string root = scratch.file("cache");
  const Digest model = digest_of("a model");
  { UnitFolder made(root, model); }
  const fs::path of_model = *entries_in(root).begin();
  for (const fs::path& folder : {fs::path(root), of_model, of_model / "bad"}) {
    for (const int mode : {0777, 01777, 0770}) {
      ASSERT_EQ(chmod(folder.c_str(), static_cast<mode_t>(mode)), 0);
      EXPECT_THROW(UnitFolder(root, model), Error) << folder << " " << mode;
    }
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  }
  EXPECT_NO_THROW(UnitFolder(root, model));
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  for (const fs::path& folder : {fs::path(root), of_model}) {
    ASSERT_EQ(chown(folder.c_str(), kSomeoneElse, kSomeoneElse), 0);
    EXPECT_THROW(UnitFolder(root, model), Error) << folder;
    ASSERT_EQ(chown(folder.c_str(), 0, 0), 0);
  }
}

TEST(UnitFolderTest, LinksInTheFolderAreNotFollowed) {
  const test::TempFolder scratch;
  const std::string root = scratch.file("cache"), target = scratch.file("target");
  const Digest model = digest_of("a model");
  { UnitFolder made(root, model); }
  const fs::path of_model = *entries_in(root).begin();
  fs::remove(of_model / "lock");
  fs::create_symlink(target, of_model / "lock");
  EXPECT_THROW(UnitFolder(root, model), Error);
  EXPECT_FALSE(fs::exists(target));
  fs::remove(of_model / "lock");
  fs::rename(of_model, scratch.file("elsewhere"));
  fs::create_directory_symlink(scratch.file("elsewhere"), of_model);
  EXPECT_THROW(UnitFolder(root, model), Error);
  fs::remove(of_model);
  fs::create_directory_symlink(root, scratch.file("link"));
  EXPECT_NO_THROW(UnitFolder(scratch.file("link"), model)) << "which the user names";
}

// The units of a text, and planted ones: links, and files of another user.
TEST(UnitFolderTest, PlantedUnitsAreNotRead) {
  const test::TempFolder scratch;
  const std::string root = scratch.file("cache");
  const Digest model = digest_of("a model");
  const UnitLayout layout{.step = 4, .block_bytes = 100, .checkpoint_bytes = 50};
  UnitFolder folder(root, model);
  std::vector<std::byte> block(100), checkpoint(50);
  const UnitPieces pieces{.ids = {1, 2, 3, 4}, .blocks = {block}, .checkpoint = {checkpoint}};
  for (uint8_t i = 1; i <= 3; ++i) {
    folder.write({.fingerprint = model, .key = {{i}}, .position = 4, .run = 4, .layout = layout},
                 pieces);
  }
  ASSERT_EQ(folder.scan(layout).size(), 3u);
  std::vector<fs::path> units;
  for (const fs::path& path : entries_in(*entries_in(root).begin()))
    if (path.extension() == ".dpc") units.push_back(path);
  ASSERT_EQ(units.size(), 3u);
  fs::rename(units[0], scratch.file("unit"));
  fs::create_symlink(scratch.file("unit"), units[0]);
  size_t left = 2;
  if (geteuid() == 0) {
    ASSERT_EQ(chown(units[1].c_str(), kSomeoneElse, kSomeoneElse), 0);
    left = 1;
  }
  EXPECT_EQ(folder.scan(layout).size(), left);
  EXPECT_EQ(folder.num_bad(), 3 - static_cast<int64_t>(left));
  EXPECT_TRUE(fs::exists(scratch.file("unit"))) << "the link went to bad/, not the file";
}

}  // namespace
}  // namespace dsv4
