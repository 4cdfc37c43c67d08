// include/dsv4_sparse_mla.h on a GPU: workspace, schedule, borrowed stream, capture. Values are the
// op test's business; here one call's bits are compared with another's.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "dsv4/device/error.h"
#include "dsv4/device/graph.h"
#include "dsv4/tensor/buffer.h"
#include "dsv4_sparse_mla.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeads = 64, kWidth = 512, kPage = 64, kPages = 40, kListed = 2500;
constexpr int64_t kPageBytes = kPage * 584 / 576 * 576 + 576;  // whole multiples of 576

class CapiOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (list_devices().empty()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<Device>(0);
    Memory& memory = device_->memory();
    q_ = Buffer(DType::kBF16, {kHeads, kWidth}, memory);
    pages_ = Buffer(DType::kU8, {kPages, kPageBytes}, memory);
    rows_ = Buffer(DType::kI32, {kListed}, memory);
    out_ = Buffer(DType::kBF16, {kHeads, kWidth}, memory);
    fill();
    p_.size = sizeof p_;
    p_.b = p_.s_q = 1, p_.h = kHeads, p_.d = p_.d_v = kWidth;
    p_.q = q_.view().data, p_.out = out_.view().data;
    p_.q_dtype = p_.out_dtype = DSV4_BF16;
    for (int64_t* strides : {p_.q_stride, p_.out_stride}) {
      strides[0] = strides[1] = kHeads * kWidth, strides[2] = kWidth;
    }
    p_.compressed = {.pages = pages_.view().data,
                     .format = DSV4_ROWS_V4,
                     .page_entries = kPage,
                     .num_pages = kPages,
                     .page_stride = kPageBytes,
                     .rows = rows_.as<int32_t>(),
                     .n = kListed,
                     .rows_stride = {kListed, kListed},
                     .lengths = nullptr};
    p_.scale = 0.04f;
    p_.implementation = "cuda_mma";  // lists of this length take workspace there
  }

  // Anything finite: small codes, scales of one half.
  void fill() {
    std::vector<uint8_t> pages(static_cast<size_t>(pages_.view().bytes()));
    std::vector<uint16_t> q(static_cast<size_t>(q_.view().numel()));
    std::vector<int32_t> rows(kListed);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<uint8_t>(i * 7 % 61);
    for (int64_t i = 0; i < kPages; ++i) {
      std::memset(pages.data() + i * kPageBytes + kPage * 576, 126, kPage * 8);
    }
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint16_t>(0x3e00 + i * 37 % 256);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<int32_t>(i * 31 % (kPages * kPage));
    const auto upload = [&](const Buffer& to, const void* from) {
      device_->memory().upload(to.view().data, static_cast<const std::byte*>(from),
                               to.view().bytes());
    };
    upload(pages_, pages.data()), upload(q_, q.data()), upload(rows_, rows.data());
  }

  std::vector<std::byte> take_output() {
    std::vector<std::byte> bytes(static_cast<size_t>(out_.view().bytes()));
    device_->memory().download(bytes.data(), out_.view().data, out_.view().bytes());
    cuda_check(cudaMemset(out_.view().data, 0x7f, bytes.size()), "poison");
    cuda_check(cudaDeviceSynchronize(), "poison");
    return bytes;
  }

  int call(const Buffer& workspace) {
    return dsv4_sparse_mla(&p_, workspace.view().data,
                           static_cast<size_t>(workspace.view().bytes()), device_->stream());
  }
  size_t wanted() {
    size_t bytes = 0;
    EXPECT_EQ(dsv4_sparse_mla_workspace_bytes(&p_, &bytes), DSV4_OK) << dsv4_last_error();
    return bytes;
  }
  Buffer workspace(size_t bytes) {
    return Buffer(DType::kU8, {static_cast<int64_t>(bytes)}, device_->memory());
  }

  std::unique_ptr<Device> device_;
  Buffer q_, pages_, rows_, out_;
  dsv4_sparse_mla_params p_{};
};

TEST_F(CapiOnDevice, WorkspaceIsExactlyWhatIsAskedFor) {
  const size_t bytes = wanted();
  ASSERT_GT(bytes, 0u);
  ASSERT_EQ(call(workspace(bytes)), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> out = take_output(), untouched = take_output();
  EXPECT_NE(out, untouched);
  EXPECT_EQ(call(workspace(bytes - 256)), DSV4_OUT_OF_ROOM);
  EXPECT_NE(std::string(dsv4_last_error()).find("too small"), std::string::npos);
  EXPECT_EQ(dsv4_sparse_mla(&p_, nullptr, 0, device_->stream()), DSV4_OUT_OF_ROOM);
  const Buffer crooked = workspace(bytes + 256);
  EXPECT_EQ(dsv4_sparse_mla(&p_, crooked.view().data + 16, bytes, device_->stream()),
            DSV4_INVALID_ARGUMENT);
  EXPECT_EQ(take_output(), untouched);
}

TEST_F(CapiOnDevice, AScheduleBringsItsWorkspace) {
  ASSERT_EQ(call(workspace(wanted())), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> want = take_output();
  ASSERT_EQ(dsv4_schedule_create(&p_.schedule), DSV4_OK);
  for (const int64_t n : {kListed / 2, kListed, kListed / 3, kListed}) {
    p_.compressed.n = n;
    ASSERT_EQ(dsv4_sparse_mla(&p_, nullptr, 0, device_->stream()), DSV4_OK) << dsv4_last_error();
    EXPECT_EQ(take_output() == want, n == kListed);
  }
  dsv4_schedule_destroy(p_.schedule);
}

// A refusal inside a capture does not spoil it, and a warm schedule can be captured.
TEST_F(CapiOnDevice, CapturesWithAWarmSchedule) {
  ASSERT_EQ(dsv4_schedule_create(&p_.schedule), DSV4_OK);
  const auto scheduled = [&] { return dsv4_sparse_mla(&p_, nullptr, 0, device_->stream()); };
  int status = DSV4_OK;
  const Graph none = Graph::capture(*device_, [&] { status = scheduled(); });
  EXPECT_EQ(status, DSV4_OUT_OF_ROOM);
  EXPECT_NE(std::string(dsv4_last_error()).find("before the capture"), std::string::npos);
  EXPECT_EQ(none.num_kernels(), 0u);

  ASSERT_EQ(scheduled(), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> want = take_output(), poison = take_output();
  const Graph graph = Graph::capture(*device_, [&] { status = scheduled(); });
  ASSERT_EQ(status, DSV4_OK) << dsv4_last_error();
  EXPECT_EQ(take_output(), poison) << "recorded, not run";
  for (int replay = 0; replay < 2; ++replay) {
    graph.launch(*device_);
    EXPECT_EQ(take_output(), want);
  }
  dsv4_schedule_destroy(p_.schedule);
}

TEST_F(CapiOnDevice, NamesAGpuThatIsNotThere) {
  p_.device = 4096;
  EXPECT_EQ(call(workspace(256)), DSV4_UNSUPPORTED);
  EXPECT_NE(std::string(dsv4_last_error()).find("no GPU cuda:4096"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
