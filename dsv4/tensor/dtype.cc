#include "dsv4/tensor/dtype.h"

namespace dsv4 {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
};

constexpr Row kTable[] = {
    {DType::kF64, "F64"}, {DType::kF32, "F32"},      {DType::kBF16, "BF16"},
    {DType::kF16, "F16"}, {DType::kE4M3, "F8_E4M3"}, {DType::kE8M0, "F8_E8M0"},
    {DType::kI64, "I64"}, {DType::kI32, "I32"},      {DType::kI16, "I16"},
    {DType::kI8, "I8"},   {DType::kU8, "U8"},        {DType::kBool, "BOOL"},
};

const Row& row(DType dtype) {
  return kTable[static_cast<int>(dtype)];
}

}  // namespace

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
