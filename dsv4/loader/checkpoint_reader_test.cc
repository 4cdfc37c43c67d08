#include "dsv4/loader/checkpoint_reader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "dsv4/base/error.h"
#include "tests/harness/checkpoint_folder.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

class Reader : public testing::Test {
 protected:
  Reader() {
    test::TestSource source(3);
    source.weight("layers.0.attn.wkv", WeightFormat::kFp8Block, 130, 70);
    source.weight("layers.0.attn.wq_a", WeightFormat::kF32, 5, 7);
    path_ = source.write(folder_);
  }
  test::TempFolder folder_;
  std::string path_;
};

TEST_F(Reader, ReadsTheBytesOfViews) {
  const Checkpoint checkpoint = Checkpoint::open(path_);
  CheckpointReader reader(checkpoint);
  for (const auto& [name, stored] : checkpoint.tensors()) {
    const auto bytes = static_cast<size_t>(stored.view.bytes()) - 1;
    std::vector<std::byte> read(bytes + 1, std::byte{0xee});
    reader.read(stored.view.data + 1, static_cast<int64_t>(bytes), read.data());
    EXPECT_EQ(std::memcmp(read.data(), stored.view.data + 1, bytes), 0) << name;
    EXPECT_EQ(read[bytes], std::byte{0xee}) << name;
  }
  const float elsewhere = 3;
  float copy = 0;
  reader.read(reinterpret_cast<const std::byte*>(&elsewhere), sizeof copy,
              reinterpret_cast<std::byte*>(&copy));
  EXPECT_EQ(copy, elsewhere);
}

TEST_F(Reader, ReportsAFileThatBecameShorter) {
  const Checkpoint checkpoint = Checkpoint::open(path_);
  CheckpointReader reader(checkpoint);
  const ConstTensorView view = checkpoint.tensors().at("layers.0.attn.wkv.weight").view;
  std::filesystem::resize_file(path_ + "/model.safetensors", 64);
  std::vector<std::byte> read(static_cast<size_t>(view.bytes()));
  const std::string error =
      test::error_of(ErrorCode::kIo, [&] { reader.read(view.data, view.bytes(), read.data()); });
  EXPECT_TRUE(test::says(error, "model.safetensors: it became shorter"));
}

}  // namespace
}  // namespace dsv4
