// What other programs do with the folder of a running cache: no call ends in another exception than
// Error, and what runs in the thread of the store throws nothing.

#include "dsv4/cache/unit_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "dsv4/base/error.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

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

}  // namespace
}  // namespace dsv4
