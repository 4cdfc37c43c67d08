#include "dsv4/tensor/tensor.h"

#include <array>
#include <numeric>

#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::error_of;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// 0, 1, 2, .. in a [2, 3, 4] tensor.
struct Numbers {
  std::array<float, 24> values{};
  TensorView view;

  Numbers()
      : view(TensorMeta::contiguous(DType::kF32, {2, 3, 4}),
             reinterpret_cast<std::byte*>(values.data())) {
    std::iota(values.begin(), values.end(), 0.f);
  }
};

TEST(TensorMeta, ContiguousStrides) {
  const TensorMeta meta = TensorMeta::contiguous(DType::kBF16, {2, 3, 4});
  EXPECT_EQ(meta.rank, 3);
  EXPECT_EQ(meta.stride, (std::array<int64_t, 4>{12, 4, 1, 0}));
  EXPECT_EQ(meta.dim(0), 2);
  EXPECT_EQ(meta.dim(-1), 4);
  EXPECT_EQ(meta.row_stride(), 4);
  EXPECT_EQ(meta.numel(), 24);
  EXPECT_EQ(meta.bytes(), 48);
  EXPECT_TRUE(meta.is_contiguous());
  EXPECT_EQ(to_string(meta), "[2, 3, 4] BF16");
}

TEST(TensorMeta, ScalarsVectorsAndEmptyTensors) {
  EXPECT_EQ(TensorMeta::contiguous(DType::kF32, {}).numel(), 1);
  EXPECT_EQ(to_string(TensorMeta::contiguous(DType::kF32, {})), "[] F32");
  EXPECT_EQ(TensorMeta::contiguous(DType::kF32, {7}).row_stride(), 0);
  EXPECT_EQ(TensorMeta::contiguous(DType::kF32, {0, 5}).numel(), 0);
  EXPECT_TRUE(TensorMeta::contiguous(DType::kF32, {0, 5}).is_contiguous());
  EXPECT_TRUE(has(error_of([] {
                    TensorMeta::contiguous(DType::kF32, {1, 1, 1, 1, 1});
                  }),
                  "rank 5 exceeds 4"));
  EXPECT_TRUE(has(error_of([] { TensorMeta::contiguous(DType::kF32, {2, -1}); }), "axis 1 is -1"));
  EXPECT_TRUE(has(error_of([] {
                    TensorMeta::contiguous(DType::kU8, {int64_t{1} << 40, 1 << 23});
                  }),
                  "[1099511627776, 8388608] U8 has more bytes than"));
  EXPECT_TRUE(has(error_of([] {
                    TensorMeta::contiguous(DType::kF64, {int64_t{1} << 40, 1 << 20});
                  }),
                  "has more bytes than"));
}

TEST(TensorView, SliceKeepsStridesAndMovesTheStart) {
  const Numbers numbers;
  const TensorView middle = numbers.view.slice(1, 1, 3);
  EXPECT_EQ(to_string(middle), "[2, 2, 4] F32");
  EXPECT_EQ(middle.as<float>()[0], 4.f);
  EXPECT_EQ(middle.stride[0], 12);
  EXPECT_FALSE(middle.is_contiguous());
  const TensorView tail = numbers.view.slice(2, 3, 4);
  EXPECT_EQ(tail.as<float>()[tail.stride[0] + tail.stride[1]], 19.f);
  EXPECT_EQ(numbers.view.slice(0, 1, 1).numel(), 0);
  EXPECT_TRUE(numbers.view.slice(0, 1, 2).is_contiguous());
}

TEST(TensorView, RowsOfStridedAndDenseTensors) {
  const Numbers numbers;
  EXPECT_EQ(numbers.view.row<float>(4)[1], 17.f) << "row 4 of [6, 4]";
  const TensorView columns = numbers.view.reshape({6, 4}).slice(1, 1, 3);
  EXPECT_EQ(columns.row_stride(), 4);
  EXPECT_EQ(columns.row<float>(2)[0], 9.f);
}

TEST(TensorView, ReshapeNeedsDenseMemory) {
  const Numbers numbers;
  EXPECT_EQ(numbers.view.reshape({4, 6}).row<float>(3)[0], 18.f);
  EXPECT_EQ(numbers.view.reshape({24}).numel(), 24);
  EXPECT_TRUE(has(error_of([&] {
                    numbers.view.reshape({5, 5});
                  }),
                  "reshape [2, 3, 4] F32 to [5, 5] F32"));
  EXPECT_TRUE(has(error_of([&] { numbers.view.slice(1, 0, 2).reshape({16}); }),
                  "reshape [2, 2, 4] F32 to [16] F32"));
}

TEST(TensorView, UnsqueezeInsertsAnAxisOfOne) {
  const Numbers numbers;
  const TensorView wide = numbers.view.unsqueeze(1);
  EXPECT_EQ(to_string(wide), "[2, 1, 3, 4] F32");
  EXPECT_TRUE(wide.is_contiguous());
  EXPECT_EQ(wide.stride[0], 12);
  const TensorView last = numbers.view.slice(1, 0, 2).unsqueeze(3);
  EXPECT_EQ(to_string(last), "[2, 2, 4, 1] F32");
  EXPECT_EQ(last.stride[0], 12);
  EXPECT_EQ(last.stride[3], 1);
  EXPECT_TRUE(has(error_of([&] { wide.unsqueeze(0); }), "unsqueeze axis 0 of [2, 1, 3, 4] F32"));
}

TEST(TensorView, ReportsErrors) {
  const Numbers numbers;
  const std::string shape = " of [2, 3, 4] F32";
  EXPECT_TRUE(
      has(error_of([&] { numbers.view.slice(3, 0, 1); }), "slice [0, 1) of axis 3" + shape));
  EXPECT_TRUE(
      has(error_of([&] { numbers.view.slice(0, 0, 3); }), "slice [0, 3) of axis 0" + shape));
  EXPECT_TRUE(
      has(error_of([&] { numbers.view.slice(0, -1, 1); }), "slice [-1, 1) of axis 0" + shape));
  EXPECT_TRUE(
      has(error_of([&] { numbers.view.slice(0, 2, 1); }), "slice [2, 1) of axis 0" + shape));
  EXPECT_TRUE(
      has(error_of([&] { numbers.view.as<double>(); }), "[2, 3, 4] F32 read as 8-byte items"));
}

TEST(Expect, BindsDimsByFirstUse) {
  const Numbers numbers;
  Dim t("t"), h("h"), d("d");
  expect("x", numbers.view, {DType::kF32}, {t, h, d});
  EXPECT_EQ(*t, 2);
  EXPECT_EQ(*d, 4);
  expect("y", numbers.view.slice(1, 0, 1).slice(2, 0, 4), {DType::kBF16, DType::kF32}, {t, 1, d});
}

TEST(Expect, ReportsErrors) {
  const Numbers numbers;
  Dim t("t", 4), d("d");
  EXPECT_EQ(error_of([&] {
              expect("x", numbers.view, {DType::kF32}, {d, d, d});
            }),
            "x: want [d=2, d=2, d=2] F32, got [2, 3, 4] F32");
  EXPECT_EQ(error_of([&] {
              expect("x", numbers.view, {DType::kF32, DType::kBF16}, {t, 3, 4});
            }),
            "x: want [t=4, 3, 4] F32|BF16, got [2, 3, 4] F32");
  Dim fresh("fresh");
  EXPECT_EQ(error_of([&] {
              expect("x", numbers.view, {DType::kF32}, {fresh, 3});
            }),
            "x: want [fresh, 3] F32, got [2, 3, 4] F32");
  EXPECT_EQ(error_of([&] {
              expect("x", numbers.view, {DType::kI32}, {2, 3, 4});
            }),
            "x: want [2, 3, 4] I32, got [2, 3, 4] F32");
  EXPECT_EQ(error_of([&] { expect("x", TensorView{}, {DType::kF32}, {2}); }),
            "x: want [2] F32, got [] F32 without data");
  TensorView strided = numbers.view;
  strided.stride[2] = 2;
  EXPECT_EQ(error_of([&] {
              expect("x", strided, {DType::kF32}, {2, 3, 4});
            }),
            "x: want [2, 3, 4] F32, got [2, 3, 4] F32 with a strided last axis");
}

TEST(Expect, TensorsWithoutElementsNeedNoData) {
  expect("x", TensorView(TensorMeta::contiguous(DType::kF32, {0, 4}), nullptr), {DType::kF32},
         {0, 4});
}

TEST(DType, NamesWidthsAndParsing) {
  const std::array<std::pair<DType, int64_t>, 12> all{{{DType::kF64, 8},
                                                       {DType::kF32, 4},
                                                       {DType::kBF16, 2},
                                                       {DType::kF16, 2},
                                                       {DType::kE4M3, 1},
                                                       {DType::kE8M0, 1},
                                                       {DType::kI64, 8},
                                                       {DType::kI32, 4},
                                                       {DType::kI16, 2},
                                                       {DType::kI8, 1},
                                                       {DType::kU8, 1},
                                                       {DType::kBool, 1}}};
  for (const auto& [dtype, bytes] : all) {
    EXPECT_EQ(item_bytes(dtype), bytes) << name(dtype);
    DType parsed = dtype == DType::kF64 ? DType::kF32 : DType::kF64;
    EXPECT_TRUE(parse_dtype(name(dtype), &parsed));
    EXPECT_EQ(parsed, dtype) << name(dtype);
  }
  EXPECT_EQ(name(DType::kE4M3), "F8_E4M3");
  EXPECT_EQ(name(DType::kE8M0), "F8_E8M0");
  DType untouched = DType::kI16;
  for (const char* unknown : {"", "f32", "F8_E5M2", "F32 "}) {
    EXPECT_FALSE(parse_dtype(unknown, &untouched)) << unknown;
  }
  EXPECT_EQ(untouched, DType::kI16);
}

}  // namespace
}  // namespace dsv4
