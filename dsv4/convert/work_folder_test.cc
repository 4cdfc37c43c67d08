// The order in which a conversion's folder is removed. quantize_test covers the rest of its
// behavior.

#include "dsv4/convert/work_folder.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/mapped_file.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

// The names deleted from one folder, in chronological order.
class Deletions {
 public:
  explicit Deletions(const std::string& folder) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(fd_, folder.c_str(), IN_DELETE), 0);
  }
  ~Deletions() { close(fd_); }
  Deletions(const Deletions&) = delete;
  Deletions& operator=(const Deletions&) = delete;

  std::vector<std::string> names() const {
    alignas(inotify_event) char buffer[4096];
    std::vector<std::string> names;
    const ssize_t bytes = read(fd_, buffer, sizeof buffer);
    for (ssize_t at = 0; at < bytes;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      if (event->len > 0) names.emplace_back(event->name);
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
    return names;
  }

 private:
  int fd_;
};

class WorkFolderTest : public testing::Test {
 protected:
  WorkFolderTest() : root_(fs::temp_directory_path() / ("dsv4_work_" + std::to_string(getpid()))) {
    fs::create_directories(root_);
  }
  ~WorkFolderTest() override { fs::remove_all(root_); }

  std::string out() const { return (root_ / "out").string(); }
  std::string partial() const { return out() + ".partial"; }
  void write_shard(const WorkFolder& folder) const {
    write_file(folder.file("a.safetensors"), "12345678");
    folder.finish("a.safetensors", {{"weights", 1}});
  }

  fs::path root_;
};

// A process that dies while it removes the folder leaves some of its files. Without job and lock
// those would look like a folder of the user's, which must not be touched.
TEST_F(WorkFolderTest, RemovesTheLockLast) {
  WorkFolder folder(out(), {{"source", "x"}}, false);
  write_shard(folder);
  const Deletions deletions(partial());
  folder.publish();
  EXPECT_EQ(deletions.names(), (std::vector<std::string>{"shards", "job.json", "lock"}));
  EXPECT_FALSE(fs::exists(partial()));
  EXPECT_TRUE(fs::exists(out() + "/a.safetensors"));
}

TEST_F(WorkFolderTest, ContinuesAfterAnInterruptedRemoval) {
  for (const std::string gone :
       {"model", "model shards", "model shards job.json", "model shards job.json lock"}) {
    {
      WorkFolder folder(out(), {{"source", "x"}}, false);
      write_shard(folder);
    }
    for (const std::string part : {"model", "shards", "job.json", "lock"}) {
      if (gone.find(part) != std::string::npos) fs::remove_all(partial() + "/" + part);
    }
    WorkFolder folder(out(), {{"source", "x"}}, false);
    nlohmann::json record;
    EXPECT_FALSE(folder.finished("a.safetensors", &record)) << gone;
    write_shard(folder);
    EXPECT_TRUE(folder.finished("a.safetensors", &record)) << gone;
    folder.publish();
    EXPECT_FALSE(fs::exists(partial())) << gone;
    fs::remove_all(out());
  }
}

TEST_F(WorkFolderTest, ADeeplyNestedRecordIsDamaged) {
  WorkFolder folder(out(), {{"source", "x"}}, true);
  write_shard(folder);
  const std::string path = partial() + "/shards/a.safetensors.json", value = R"({"weights":1})";
  std::string text = read_text_file(path);
  ASSERT_NE(text.find(value), text.npos) << text;
  text.replace(text.find(value), value.size(),
               std::string(100'000, '[') + std::string(100'000, ']'));
  write_file(path, text);
  nlohmann::json record;
  EXPECT_FALSE(folder.finished("a.safetensors", &record));
}

// One bit of a finished shard, wherever it is: the shard is written again.
TEST_F(WorkFolderTest, NoticesAShardThatChanged) {
  const std::string bytes(3 << 20, 'x');  // more than is read at a time
  for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    WorkFolder folder(out(), {{"source", "x"}}, true);
    nlohmann::json record;
    write_file(folder.file("a.safetensors"), bytes);
    folder.finish("a.safetensors", {{"weights", 1}});
    EXPECT_TRUE(folder.finished("a.safetensors", &record));
    std::string changed = bytes;
    changed[at] ^= 1;
    write_file(folder.file("a.safetensors"), changed);
    EXPECT_TRUE(folder.in_place("a.safetensors"));
    EXPECT_FALSE(folder.finished("a.safetensors", &record)) << at;
    write_file(folder.file("a.safetensors"), bytes + "x");
    EXPECT_FALSE(folder.in_place("a.safetensors"));
    EXPECT_FALSE(folder.finished("a.safetensors", &record));
  }
}

}  // namespace
}  // namespace dsv4
