// xattn_scores and xattn_select against tests/golden/xattn: the published algorithm, written again
// in numpy (tools/goldens/make_xattn_goldens.py).

#include <gtest/gtest.h>

#include <cmath>

#include "dsv4/loader/safetensors.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"
#include "dsv4/ops/xattn/select/xattn_select.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

struct Golden {
  ConstTensorView q, k, tau, sums, mask, reference;
  int64_t stride;
  Buffer cu_q, cu_kv;
  PrefillBatch batch;

  Golden(const SafetensorsFile& file, const std::string& name)
      : cu_q(DType::kI32, {2}), cu_kv(DType::kI32, {2}) {
    const auto part = [&](const char* of) { return file.tensors().at(name + "." + of); };
    q = part("q"), k = part("k"), tau = part("tau"), sums = part("sums");
    mask = part("mask"), reference = part("reference");
    stride = *ConstTensorView(part("stride")).as<int>();
    cu_q.as<int>()[1] = static_cast<int>(q.dim(0));
    cu_kv.as<int>()[1] = static_cast<int>(k.dim(0));
    batch = {.cu_q = cu_q, .cu_kv = cu_kv};
  }

  int64_t heads() const { return sums.dim(0); }
  int64_t rows() const { return sums.dim(1); }
  int64_t columns() const { return sums.dim(2); }
};

Buffer scores_of(const Golden& golden) {
  Buffer sums(DType::kF32, {1, golden.heads(), golden.rows(), golden.columns()});
  xattn_scores({}, {.batch = golden.batch,
                    .q = golden.q,
                    .k = golden.k,
                    .stride = golden.stride,
                    .scale = 1.f / std::sqrt(static_cast<float>(golden.q.dim(2))),
                    .sums = sums});
  return sums;
}

// [heads, q_blocks, k_blocks] U8
Buffer mask_of(const Golden& golden, const ConstTensorView& sums) {
  const int64_t heads = golden.heads(), rows = golden.rows(), columns = golden.columns();
  const Buffer counts(DType::kI32, {1, heads, rows}),
      indices(DType::kI32, {1, heads, rows, columns});
  xattn_select({}, {.batch = golden.batch,
                    .sums = sums,
                    .tau = golden.tau,
                    .lists = {.counts = counts, .indices = indices}});
  Buffer mask(DType::kU8, {heads, rows, columns});
  for (int64_t row = 0; row < heads * rows; ++row) {
    for (int i = 0; i < counts.as<int>()[row]; ++i) {
      mask.as<uint8_t>()[row * columns + indices.as<int>()[row * columns + i]] = 1;
    }
  }
  return mask;
}

class XattnGolden : public testing::TestWithParam<const char*> {
 protected:
  const SafetensorsFile file_{"tests/golden/xattn/xattn.safetensors"};
  const Golden golden_{file_, GetParam()};
};

// The reference rounds sums to bf16, 2^-9 of them, and scores: exponents of up to 12 here, each off
// by 2^-9 of itself, so that single exponentials are off by up to 2.4 % and their sums by less.
TEST_P(XattnGolden, Scores) {
  const Buffer sums = scores_of(golden_);
  for (int64_t i = 0; i < golden_.sums.numel(); ++i) {
    const double want = static_cast<double>(golden_.sums.as<float>()[i]);
    ASSERT_NEAR(static_cast<double>(sums.as<float>()[i]), want, 0.015 * want + 1e-5) << i;
  }
}

// From the reference's own sums: the same blocks, everywhere.
TEST_P(XattnGolden, SelectionFromItsSums) {
  Buffer sums(DType::kF32, {1, golden_.heads(), golden_.rows(), golden_.columns()});
  std::copy_n(golden_.sums.as<float>(), golden_.sums.numel(), sums.as<float>());
  const Buffer mask = mask_of(golden_, sums);
  for (int64_t i = 0; i < golden_.mask.numel(); ++i) {
    ASSERT_EQ(mask.as<uint8_t>()[i], golden_.mask.as<uint8_t>()[i]) << i;
  }
}

// Where the reference starts a chunk at block 0 it lists one block more, and never one less.
TEST_P(XattnGolden, ReferenceListsAtMostOneMore) {
  const int64_t columns = golden_.columns();
  for (int64_t row = 0; row < golden_.heads() * golden_.rows(); ++row) {
    int more = 0;
    for (int64_t j = row * columns; j < (row + 1) * columns; ++j) {
      const int ours = golden_.mask.as<uint8_t>()[j], theirs = golden_.reference.as<uint8_t>()[j];
      more += theirs - ours;
    }
    ASSERT_GE(more, 0) << row;
    ASSERT_LE(more, 2) << row;  // one too many, and block 0 that was not counted
  }
}

// From unrounded scores: blocks that differ lie at the cut.
TEST_P(XattnGolden, WholeEstimate) {
  const Buffer mask = mask_of(golden_, scores_of(golden_));
  int64_t differ = 0;
  for (int64_t i = 0; i < golden_.mask.numel(); ++i) {
    differ += mask.as<uint8_t>()[i] != golden_.mask.as<uint8_t>()[i] ? 1 : 0;
  }
  EXPECT_LE(differ, golden_.heads() * golden_.rows() / 8);
}

INSTANTIATE_TEST_SUITE_P(Cases, XattnGolden,
                         testing::Values("one_chunk", "chunks", "offset", "padded"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace dsv4
