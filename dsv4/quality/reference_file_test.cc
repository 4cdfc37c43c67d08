#include "dsv4/quality/reference_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;

class ReferenceFileTest : public testing::Test {
 protected:
  static constexpr int64_t kVocab = 13;

  // Row r holds 100 r + v.
  static Buffer rows(int64_t first, int64_t count) {
    Buffer logits(DType::kF32, {count, kVocab});
    for (int64_t i = 0; i < count * kVocab; ++i)
      logits.as<float>()[i] = static_cast<float>(100 * (first + i / kVocab) + i % kVocab);
    return logits;
  }
  void write(const Ids& ids, const WindowOptions& options) const {
    const std::vector<Window> windows = split_windows(ids, options);
    ReferenceWriter writer(path, ids, options, num_counted(windows), kVocab, "exact");
    int64_t row = 0;
    for_each_piece(windows, options.bos, 5, [&](const Piece& piece) {
      const auto count = static_cast<int64_t>(piece.targets.size());
      if (count == 0) return;
      writer.add(rows(row, count));
      row += count;
    });
    writer.finish();
  }
  std::string error() const {
    return test::error_of(ErrorCode::kBadInput, [&] { ReferenceFile file(path); });
  }
  void write_tensors(const Buffer& logits, const Buffer& ids,
                     const std::map<std::string, std::string>& metadata = {}) const {
    write_safetensors(path, {{"logits", logits}, {"ids", ids}}, metadata);
  }

  const test::TempFolder folder;
  const std::string path = folder.file("reference");
};

TEST_F(ReferenceFileTest, RoundTrips) {
  const Ids ids = {12, 1, 2, 3, 4, 5, 6, 7, 8, 12, 9, 10, 11};
  for (const WindowOptions& options :
       {WindowOptions{.context = 6, .stride = 2, .bos = 12}, WindowOptions{.context = 7}}) {
    write(ids, options);
    ReferenceFile file(path);
    EXPECT_EQ(Ids(file.ids().begin(), file.ids().end()), ids);
    EXPECT_EQ(file.options().context, options.context);
    EXPECT_EQ(file.options().stride, stride_of(options));
    EXPECT_EQ(file.options().bos, options.bos);
    EXPECT_EQ(file.numerics(), "exact");
    EXPECT_EQ(file.vocab(), kVocab);
    int64_t row = 0;
    for_each_piece(split_windows(file.ids(), file.options()), options.bos, 3,
                   [&](const Piece& piece) {
                     const ConstTensorView got = file.next(piece);
                     for (size_t i = 0; i < piece.targets.size(); ++i, ++row)
                       EXPECT_EQ(got.row<float>(static_cast<int64_t>(i))[1], 100.f * row + 1);
                   });
    EXPECT_EQ(row, options.bos >= 0 ? 11 : 12);
  }
}

TEST_F(ReferenceFileTest, LogitsOfEveryPosition) {
  Buffer ids(DType::kI32, {4});
  for (int i = 0; i < 4; ++i) ids.as<int32_t>()[i] = i;
  write_tensors(rows(0, 4), ids, {{"numerics", "official"}});
  ReferenceFile file(path);
  EXPECT_EQ(file.options().context, 4);
  EXPECT_EQ(file.options().bos, -1);
  EXPECT_EQ(num_counted(split_windows(file.ids(), file.options())), 3);
}

TEST_F(ReferenceFileTest, AppearsCompleteOrNotAtAll) {
  {
    ReferenceWriter writer(path, Ids{1, 2, 3}, {.context = 4}, 2, kVocab, "exact");
    writer.add(rows(0, 1));
    EXPECT_TRUE(test::says(test::error_of(ErrorCode::kInvalidArgument, [&] { writer.finish(); }),
                           "1 rows are missing"));
  }
  EXPECT_TRUE(folder.list().empty());
}

TEST_F(ReferenceFileTest, RejectsOtherFiles) {
  const Buffer logits = rows(0, 3), ids(DType::kI32, {3});
  write_safetensors(path, {{"logits", logits}});
  EXPECT_TRUE(test::says(error(), "ids is missing"));
  write_safetensors(path, {{"logits", ids}, {"ids", ids}});
  EXPECT_TRUE(test::says(error(), "logits is [3] I32"));
  std::ofstream(path) << "not a safetensors file";
  EXPECT_TRUE(test::says(error(), path));
}

TEST_F(ReferenceFileTest, RejectsInconsistentFiles) {
  const std::map<std::string, std::string> how = {{"context", "4"}, {"stride", "3"}, {"bos", "-1"}};
  const auto changed = [&](const std::string& key, const std::string& value) {
    std::map<std::string, std::string> metadata = how;
    metadata[key] = value;
    write_tensors(rows(0, 2), Buffer(DType::kI32, {3}), metadata);
    return error();
  };
  EXPECT_TRUE(test::says(changed("context", "four"), "metadata context is not a count"));
  EXPECT_TRUE(test::says(changed("context", "99999999999"), "metadata context is not a count"));
  EXPECT_TRUE(test::says(changed("context", "1"), "a context of 1 tokens predicts nothing"));
  EXPECT_TRUE(test::says(changed("stride", "4"), "a stride of 4 does not fit"));
  EXPECT_TRUE(test::says(changed("stride", ""), "metadata stride is not a count"));
  EXPECT_TRUE(test::says(changed("bos", "13"), "token id 13"));
  write_tensors(rows(0, 3), Buffer(DType::kI32, {3}), how);
  EXPECT_TRUE(test::says(error(), "want logits of 2 tokens, got 3"));
  write_tensors(rows(0, 2), Buffer(DType::kI32, {3}));
  EXPECT_TRUE(test::says(error(), "want logits of 3 tokens, got 2"));
  const Buffer ids(DType::kI32, {3});
  ids.as<int32_t>()[1] = -5;
  write_tensors(rows(0, 3), ids);
  EXPECT_TRUE(test::says(error(), "token id -5 at position 1"));
}

}  // namespace
}  // namespace dsv4
