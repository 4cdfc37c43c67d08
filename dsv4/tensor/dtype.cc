#include "dsv4/tensor/dtype.h"

namespace dsv4 {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr Row kTable[] = {
    {DType::kF64, "F64", 8}, {DType::kF32, "F32", 4},      {DType::kBF16, "BF16", 2},
    {DType::kF16, "F16", 2}, {DType::kE4M3, "F8_E4M3", 1}, {DType::kE8M0, "F8_E8M0", 1},
    {DType::kI64, "I64", 8}, {DType::kI32, "I32", 4},      {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},   {DType::kU8, "U8", 1},        {DType::kBool, "BOOL", 1},
};

const Row& row(DType dtype) {
  return kTable[static_cast<int>(dtype)];
}

}  // namespace

int64_t item_bytes(DType dtype) {
  return row(dtype).bytes;
}
std::string_view name(DType dtype) {
  return row(dtype).name;
}

bool parse_dtype(std::string_view safetensors_name, DType* out) {
  for (const Row& candidate : kTable) {
    if (candidate.name == safetensors_name) {
      *out = candidate.dtype;
      return true;
    }
  }
  return false;
}

}  // namespace dsv4
