#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/loader/safetensors.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;
using test::TempFolder;
using Tensors = std::vector<std::pair<std::string, ConstTensorView>>;

Buffer random_buffer(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed) {
  Buffer buffer(dtype, shape);
  Rng rng(seed);
  for (int64_t i = 0; i < buffer.view().bytes(); ++i)
    buffer.view().data[i] = static_cast<std::byte>(rng.bits() & 0xffu);
  return buffer;
}

TEST(WriteSafetensors, RoundTrips) {
  const TempFolder folder;
  std::vector<Buffer> buffers;
  Tensors tensors;
  uint64_t seed = 1;
  for (const DType dtype : {DType::kU8, DType::kF64, DType::kBF16, DType::kE4M3, DType::kF32,
                            DType::kI64, DType::kE8M0, DType::kF16, DType::kI8}) {
    for (const auto& shape :
         {std::initializer_list<int64_t>{}, {1}, {3, 5}, {2, 0, 7}, {1, 2, 3, 1}}) {
      buffers.push_back(random_buffer(dtype, shape, seed));
      tensors.emplace_back(fmt::format("layers.{}.\"\xc3\xa9\"\\", seed++), buffers.back());
    }
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"line\n\"", ""}};
  write_safetensors(folder.file("x.safetensors"), tensors, metadata);

  const SafetensorsFile file(folder.file("x.safetensors"));
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.num_copied(), 0u) << "the writer aligns every tensor";
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, want] : tensors) {
    const ConstTensorView got = file.tensors().at(name);
    EXPECT_EQ(to_string(got), to_string(want));
    ASSERT_EQ(got.bytes(), want.bytes());
    EXPECT_EQ(std::memcmp(got.data, want.data, static_cast<size_t>(want.bytes())), 0) << name;
  }
  EXPECT_EQ(folder.list(), std::vector<std::string>{"x.safetensors"});
}

TEST(WriteSafetensors, WritesAFileWithoutTensors) {
  const TempFolder folder;
  write_safetensors(folder.file("x.safetensors"), {});
  EXPECT_TRUE(SafetensorsFile(folder.file("x.safetensors")).tensors().empty());
}

TEST(WriteSafetensors, RejectsWhatItCouldNotReadBack) {
  const TempFolder folder;
  const Buffer buffer(DType::kF32, {2, 3});
  const auto reject = [&](const Tensors& tensors) {
    return error_of(ErrorCode::kInvalidArgument,
                    [&] { write_safetensors(folder.file("x.safetensors"), tensors); });
  };
  EXPECT_TRUE(says(reject({{"a", buffer}, {"a", buffer}}), "a occurs twice"));
  EXPECT_TRUE(says(reject({{"", buffer}}), "tensor name ''"));
  EXPECT_TRUE(says(reject({{"a\nb", buffer}}), "'a?b'"));
  EXPECT_TRUE(says(reject({{"__metadata__", buffer}}), "__metadata__"));
  EXPECT_TRUE(says(reject({{"\xff", buffer}}), "UTF-8"));
  EXPECT_TRUE(says(reject({{"a", buffer.view().slice(1, 0, 2)}}), "not contiguous"));
  EXPECT_TRUE(folder.list().empty());
}

// Limits the file size to `bytes` in its scope: the same short write and error as a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit old_{};
};

TEST(WriteSafetensors, FullDiskLeavesOnlyTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.file("x.safetensors");
  const Buffer small(DType::kF32, {4}), large(DType::kF32, {1000, 1000});
  write_safetensors(path, {{"small", small}});
  for (const rlim_t limit : {0u, 4u, 50u, 65536u}) {  // in the length, the header, the data
    const FileSizeLimit full(limit);
    EXPECT_EQ(error_of(ErrorCode::kIo,
                       [&] {
                         write_safetensors(path, {{"large", large}});
                       }),
              fmt::format("cannot write {}: File too large", path));
  }
  EXPECT_EQ(folder.list(), std::vector<std::string>{"x.safetensors"});
  EXPECT_EQ(SafetensorsFile(path).tensors().count("small"), 1u);
  write_safetensors(path, {{"large", large}});
  EXPECT_EQ(SafetensorsFile(path).tensors().count("large"), 1u);
}

TEST(WriteSafetensors, RejectsNonRegularTargets) {
  const TempFolder folder;
  const auto write = [](const std::string& path) {
    return error_of(ErrorCode::kIo, [&] { write_safetensors(path, {}); });
  };
  EXPECT_EQ(write("/dev/full"), "cannot write /dev/full: not a regular file");
  EXPECT_EQ(write(folder.path()),
            fmt::format("cannot write {}: not a regular file", folder.path()));
  const std::string missing = folder.file("none/x.safetensors");
  EXPECT_EQ(write(missing), fmt::format("cannot write {}: No such file or directory", missing));
}

}  // namespace
}  // namespace dsv4
