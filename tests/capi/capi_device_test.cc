// include/dsv4_sparse_mla.h on a GPU: workspace, schedule, borrowed stream, capture, for each
// device implementation by name. The op test checks values; here one call's bits are compared with
// another's.

#include <gtest/gtest.h>

#include <algorithm>
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

struct RowCase {
  const char* name;
  bool packed;           // V4 rows, otherwise bf16
  bool hopper;           // for 9.0 only
  bool takes_workspace;  // for a list of kListed
};
void PrintTo(const RowCase& row, std::ostream* out) {
  *out << row.name;
}

constexpr RowCase kRows[] = {{"cuda_mma", true, false, true},
                             {"sm90_fp8", true, true, false},
                             {"sm90_fp8_invariant", true, true, false},
                             {"sm90_bf16", false, true, false}};

class CapiOnDevice : public testing::TestWithParam<RowCase> {
 protected:
  void SetUp() override {
    const std::vector<DeviceInfo> devices = list_devices();
    if (devices.empty()) GTEST_SKIP() << "no GPU";
    const int version = devices[0].major * 10 + devices[0].minor;
    if (GetParam().hopper && version != 90)
      GTEST_SKIP() << GetParam().name << " is for sm_90, this is sm_" << version;
    device_ = std::make_unique<Device>(0);
    Memory& memory = device_->memory();
    q_ = Buffer(DType::kBF16, {kHeads, kWidth}, memory);
    pages_ = Buffer(DType::kU8, {kPages, page_bytes()}, memory);
    indices_ = Buffer(DType::kI32, {kListed}, memory);
    out_ = Buffer(DType::kBF16, {kHeads, kWidth}, memory);
    fill();
    const int64_t vectors[] = {1, 1, kHeads, kWidth}, ids[] = {1, 1, kListed};
    const int64_t cache[] = {kPages, kPage, packed() ? 584 : kWidth};
    p_ = {.size = sizeof p_, .scale = 0.04f};
    p_.q = tensor(q_, DSV4_BF16, vectors);
    p_.out = tensor(out_, DSV4_BF16, vectors);
    p_.compressed.pages = tensor(pages_, packed() ? DSV4_U8 : DSV4_BF16, cache);
    p_.compressed.pages.stride[0] = page_bytes() / (packed() ? 1 : 2);
    p_.compressed.indices = tensor(indices_, DSV4_I32, ids);
    how_ = {.size = sizeof how_, .stream = device_->stream(), .implementation = GetParam().name};
  }

  template <size_t kRank>
  static dsv4_tensor tensor(const Buffer& buffer, dsv4_dtype dtype, const int64_t (&shape)[kRank]) {
    return dsv4_packed_tensor(buffer.view().data, dtype, 0, kRank, shape);
  }

  static bool packed() { return GetParam().packed; }
  // Packed: whole multiples of 576.
  static int64_t page_bytes() {
    return packed() ? kPage * 584 / 576 * 576 + 576 : kPage * kWidth * 2;
  }

  // Anything finite: small codes, scales of one half; as bf16 below 2^-4.
  void fill() {
    std::vector<uint8_t> pages(static_cast<size_t>(pages_.view().bytes()));
    std::vector<uint16_t> q(static_cast<size_t>(q_.view().numel()));
    std::vector<int32_t> indices(kListed);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<uint8_t>(i * 7 % 61);
    for (int64_t i = 0; packed() && i < kPages; ++i) {
      std::memset(pages.data() + i * page_bytes() + kPage * 576, 126, kPage * 8);
    }
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint16_t>(0x3e00 + i * 37 % 256);
    for (size_t i = 0; i < indices.size(); ++i)
      indices[i] = static_cast<int32_t>(i * 31 % (kPages * kPage));
    const auto upload = [&](const Buffer& to, const void* from) {
      device_->memory().upload(to.view().data, static_cast<const std::byte*>(from),
                               to.view().bytes());
    };
    upload(pages_, pages.data()), upload(q_, q.data()), upload(indices_, indices.data());
  }

  std::vector<std::byte> take_output() {
    std::vector<std::byte> bytes(static_cast<size_t>(out_.view().bytes()));
    device_->memory().download(bytes.data(), out_.view().data, out_.view().bytes());
    cuda_check(cudaMemset(out_.view().data, 0x7f, bytes.size()), "poison");
    cuda_check(cudaDeviceSynchronize(), "poison");
    return bytes;
  }

  int call(void* workspace, size_t bytes) {
    how_.workspace = workspace, how_.workspace_bytes = bytes;
    return dsv4_sparse_mla(&p_, &how_);
  }
  int call(const Buffer& workspace) {
    return call(workspace.view().data, static_cast<size_t>(workspace.view().bytes()));
  }
  size_t wanted() {
    size_t bytes = 0;
    EXPECT_EQ(dsv4_sparse_mla_workspace_bytes(&p_, &how_, &bytes), DSV4_OK) << dsv4_last_error();
    return bytes;
  }
  Buffer workspace(size_t bytes) {
    return Buffer(DType::kU8, {std::max<int64_t>(256, static_cast<int64_t>(bytes))},
                  device_->memory());
  }

  std::unique_ptr<Device> device_;
  Buffer q_, pages_, indices_, out_;
  dsv4_sparse_mla_params p_{};
  dsv4_call how_{};
};

TEST_P(CapiOnDevice, WorkspaceIsExactlyWhatIsAskedFor) {
  const size_t bytes = wanted();
  ASSERT_EQ(bytes > 0, GetParam().takes_workspace);
  ASSERT_EQ(call(workspace(bytes)), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> out = take_output(), untouched = take_output();
  EXPECT_NE(out, untouched);
  if (bytes == 0) {
    EXPECT_EQ(call(nullptr, 0), DSV4_OK) << dsv4_last_error();
    EXPECT_EQ(take_output(), out);
    return;
  }
  EXPECT_EQ(call(workspace(bytes - 256)), DSV4_OUT_OF_ROOM);
  EXPECT_NE(std::string(dsv4_last_error()).find("too small"), std::string::npos);
  EXPECT_EQ(call(nullptr, 0), DSV4_OUT_OF_ROOM);
  const Buffer crooked = workspace(bytes + 256);
  EXPECT_EQ(call(crooked.view().data + 16, bytes), DSV4_INVALID_ARGUMENT);
  EXPECT_EQ(take_output(), untouched);
}

TEST_P(CapiOnDevice, AScheduleBringsItsWorkspace) {
  ASSERT_EQ(call(workspace(wanted())), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> want = take_output();
  ASSERT_EQ(dsv4_schedule_create(&how_.schedule), DSV4_OK);
  for (const int64_t n : {kListed / 2, kListed, kListed / 3, kListed}) {
    p_.compressed.indices.shape[2] = n;
    ASSERT_EQ(call(nullptr, 0), DSV4_OK) << dsv4_last_error();
    EXPECT_EQ(take_output() == want, n == kListed);
  }
  dsv4_schedule_destroy(how_.schedule);
}

// A refusal inside a capture does not spoil it, and a warm schedule can be captured.
TEST_P(CapiOnDevice, CapturesWithAWarmSchedule) {
  ASSERT_EQ(dsv4_schedule_create(&how_.schedule), DSV4_OK);
  const auto scheduled = [&] { return call(nullptr, 0); };
  int status = DSV4_OK;
  if (GetParam().takes_workspace) {
    const Graph none = Graph::capture(*device_, [&] { status = scheduled(); });
    EXPECT_EQ(status, DSV4_OUT_OF_ROOM);
    EXPECT_NE(std::string(dsv4_last_error()).find("before the capture"), std::string::npos);
    EXPECT_EQ(none.num_kernels(), 0u);
  }

  ASSERT_EQ(scheduled(), DSV4_OK) << dsv4_last_error();
  const std::vector<std::byte> want = take_output(), poison = take_output();
  const Graph graph = Graph::capture(*device_, [&] { status = scheduled(); });
  ASSERT_EQ(status, DSV4_OK) << dsv4_last_error();
  EXPECT_EQ(take_output(), poison) << "recorded, not run";
  for (int replay = 0; replay < 2; ++replay) {
    graph.launch(*device_);
    EXPECT_EQ(take_output(), want);
  }
  dsv4_schedule_destroy(how_.schedule);
}

TEST_P(CapiOnDevice, NamesAGpuThatIsNotThere) {
  for (dsv4_tensor* tensor : {&p_.q, &p_.out, &p_.compressed.pages, &p_.compressed.indices})
    tensor->device = 4096;
  EXPECT_EQ(call(workspace(256)), DSV4_UNSUPPORTED);
  EXPECT_NE(std::string(dsv4_last_error()).find("no GPU cuda:4096"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Rows, CapiOnDevice, testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace dsv4
