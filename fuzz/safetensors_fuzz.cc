// A whole safetensors file: header, layout of the data, official names, slices of stacked experts.

#include <span>

#include "dsv4/loader/names.h"
#include "dsv4/loader/safetensors.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

// Reads every byte, so that the sanitizer reports a view that exceeds the input.
unsigned sum_of(const ConstTensorView& view) {
  unsigned sum = 0;
  for (int64_t i = 0; i < view.bytes(); ++i) sum += std::to_integer<unsigned>(view.data[i]);
  return sum;
}

void check_tensors(const SafetensorsIndex& index, size_t file_bytes) {
  int64_t covered = 0;
  for (const auto& [name, view] : index.tensors) {
    fuzz::require(view.is_contiguous() && view.bytes() >= 0);
    covered += view.bytes();
    const unsigned whole = sum_of(view);
    fuzz::allow_bad_input([&, &stored = name, &tensor = view] {
      unsigned parts = 0;
      for (const OfficialTensor& part : official_tensors(stored, tensor))
        parts += sum_of(part.view);
      fuzz::require(parts == whole);
    });
  }
  fuzz::require(covered < static_cast<int64_t>(file_bytes));
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  dsv4::fuzz::allow_bad_input(
      [&] { dsv4::check_tensors(dsv4::parse_safetensors(bytes, "input"), size); });
  return 0;
}
