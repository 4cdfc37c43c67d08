#include "dsv4/device/tma_map.h"

#include "dsv4/base/error.h"
#include "dsv4/device/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlign = 16;
constexpr int64_t kMaxSize = int64_t{1} << 32, kMaxStride = int64_t{1} << 40, kMaxBox = 256;

int64_t span_bytes(TmaSwizzle swizzle) {
  switch (swizzle) {
    case TmaSwizzle::k32:
      return 32;
    case TmaSwizzle::k64:
      return 64;
    case TmaSwizzle::k128:
      return 128;
    case TmaSwizzle::kNone:
      break;
  }
  return kMaxBox * 8;
}

CUtensorMapSwizzle driver_swizzle(TmaSwizzle swizzle) {
  switch (swizzle) {
    case TmaSwizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case TmaSwizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case TmaSwizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case TmaSwizzle::kNone:
      break;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

// Codes of one byte move as bytes: the copy does not look into them.
CUtensorMapDataType driver_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kI32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::kU8:
    case DType::kI8:
    case DType::kE4M3:
    case DType::kE8M0:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      fail(ErrorCode::kInvalidArgument, "tensor maps of {} are not offered", name(dtype));
  }
}

// The driver is not linked: programs start without one.
using Encode = decltype(&cuTensorMapEncodeTiled);
Encode driver_encode() {
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                              cudaEnableDefault, &found),
             "looking for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    fail(ErrorCode::kUnsupported,
         "the driver knows no tensor maps: install one for CUDA 12 or newer");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

TmaBox tma_rows(const void* base, DType dtype, int64_t rows, int64_t columns, int64_t row_bytes,
                int64_t box_rows, int64_t box_columns, TmaSwizzle swizzle) {
  return {.base = base,
          .dtype = dtype,
          .rank = 2,
          .size = {columns, rows},
          .stride = {item_bytes(dtype), row_bytes},
          .box = {box_columns, box_rows},
          .swizzle = swizzle};
}

void check(const TmaBox& b) {
  driver_type(b.dtype);
  const int64_t item = item_bytes(b.dtype);
  DSV4_CHECK(b.rank >= 1 && b.rank <= TmaBox::kMaxRank, "a tensor map has 1 to {} axes, not {}",
             TmaBox::kMaxRank, b.rank);
  DSV4_CHECK(b.base != nullptr && reinterpret_cast<uintptr_t>(b.base) % kAlign == 0,
             "the tensor must begin at a multiple of {} bytes, not at {}", kAlign, b.base);
  int64_t inside = item;  // bytes that one step of the axis at hand must not fall short of
  for (size_t i = 0; i < static_cast<size_t>(b.rank); ++i) {
    DSV4_CHECK(b.size[i] >= 1 && b.size[i] <= kMaxSize, "axis {} has {} elements, not 1 to {}", i,
               b.size[i], kMaxSize);
    DSV4_CHECK(b.box[i] >= 1 && b.box[i] <= kMaxBox,
               "axis {} of the box has {} elements, not 1 to {}", i, b.box[i], kMaxBox);
    if (i > 0) {
      DSV4_CHECK(b.stride[i] % kAlign == 0 && b.stride[i] < kMaxStride,
                 "axis {} has a stride of {} bytes, not a multiple of {} below {}", i, b.stride[i],
                 kAlign, kMaxStride);
      DSV4_CHECK(b.stride[i] >= inside, "axis {} has a stride of {} bytes, the axes inside span {}",
                 i, b.stride[i], inside);
    }
    inside = b.size[i] * (i > 0 ? b.stride[i] : item);
  }
  const int64_t inner = b.box[0] * item;
  DSV4_CHECK(inner % kAlign == 0, "a row of the box has {} bytes, not a multiple of {}", inner,
             kAlign);
  DSV4_CHECK(inner <= span_bytes(b.swizzle), "a row of the box has {} bytes, the swizzle spans {}",
             inner, span_bytes(b.swizzle));
}

CUtensorMap make_tma_map(const TmaBox& b) {
  check(b);
  std::array<cuuint64_t, TmaBox::kMaxRank> sizes{}, strides{};
  std::array<cuuint32_t, TmaBox::kMaxRank> box{}, steps{};
  for (size_t i = 0; i < static_cast<size_t>(b.rank); ++i) {
    sizes[i] = static_cast<cuuint64_t>(b.size[i]);
    box[i] = static_cast<cuuint32_t>(b.box[i]);
    steps[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(b.stride[i]);
  }
  alignas(64) CUtensorMap map{};
  const CUresult result =
      driver_encode()(&map, driver_type(b.dtype), static_cast<cuuint32_t>(b.rank),
                      const_cast<void*>(b.base), sizes.data(), strides.data(), box.data(),
                      steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, driver_swizzle(b.swizzle),
                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail(ErrorCode::kUnsupported, "cuTensorMapEncodeTiled refuses a checked description: error {}",
         static_cast<int>(result));
  return map;
}

}  // namespace dsv4
