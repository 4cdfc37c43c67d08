#include "dsv4/base/mapped_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "dsv4/base/error.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

// A fresh folder per test, removed at its end.
class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = (fs::path(testing::TempDir()) / "mapped_file_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static std::string text(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  fs::path folder_;
};

TEST_F(MappedFileTest, HoldsTheBytes) {
  const std::string content("a\0b\n", 4);
  const MappedFile file(write("x", content));
  EXPECT_EQ(text(file), content);
  EXPECT_EQ(file.path(), (folder_ / "x").string());
  EXPECT_EQ(read_text_file(file.path()), content);
}

TEST_F(MappedFileTest, ReleasedPagesAreReadAgain) {
  const std::string content(100000, 'x');
  const MappedFile file(write("x", content));
  EXPECT_EQ(text(file), content);
  file.release_pages();
  EXPECT_EQ(text(file), content);
  MappedFile(write("empty", "")).release_pages();
}

TEST_F(MappedFileTest, EmptyFileIsAnEmptySpan) {
  const std::string path = write("empty", "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  EXPECT_EQ(read_text_file(path), "");
}

TEST_F(MappedFileTest, MovesKeepTheMappingAlive) {
  MappedFile first(write("1", "one"));
  MappedFile second(write("2", "two"));
  MappedFile third(std::move(first));
  EXPECT_EQ(text(third), "one");
  third = std::move(second);
  EXPECT_EQ(text(third), "two");
  fs::remove(folder_ / "2");
  EXPECT_EQ(text(third), "two") << "the mapping outlives the name";
}

TEST_F(MappedFileTest, ErrorsNameThePathAndTheReason) {
  const std::string missing = (folder_ / "missing").string();
  EXPECT_EQ(test::error_of([&] { const MappedFile file(missing); }),
            "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(test::error_of([&] { const MappedFile file(folder_.string()); }),
            "cannot read " + folder_.string() + ": not a regular file");
  try {
    const MappedFile file(missing);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
}

TEST_F(MappedFileTest, APipeIsRefusedWithoutWaitingForAWriter) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(test::error_of([&] { const MappedFile file(pipe); }),
            "cannot read " + pipe + ": not a regular file");
}

TEST_F(MappedFileTest, LinksToNothingArePresent) {
  const std::string missing = (folder_ / "missing").string(), link = (folder_ / "link").string();
  EXPECT_TRUE(is_present(write("file", "")));
  EXPECT_FALSE(is_present(missing));
  EXPECT_FALSE(is_present((folder_ / "file" / "below").string()));
  fs::create_symlink(missing, link);
  EXPECT_TRUE(is_present(link));
  fs::remove(link);
  fs::create_symlink(link, link);
  EXPECT_TRUE(is_present(link));
  EXPECT_TRUE(is_present(link + "/below")) << "opening it says that the link loops";
}

TEST_F(MappedFileTest, TextFilesHaveALimit) {
  const std::string path = write("big", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  EXPECT_EQ(test::error_of([&] { read_text_file(path, 4); }),
            path + " has 5 bytes, more than the limit of 4");
}

}  // namespace
}  // namespace dsv4
