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

// A header without its data describes the same tensors.
void check_header(const SafetensorsIndex& index, std::string_view text) {
  const auto bytes = static_cast<size_t>(safetensors_header_bytes(text));
  fuzz::require(bytes > 0 && bytes <= text.size());
  const SafetensorsIndex alone =
      parse_safetensors_header(text.substr(0, bytes), static_cast<int64_t>(text.size()), "input");
  fuzz::require(alone.tensors.size() == index.tensors.size() && alone.metadata == index.metadata);
  for (const auto& [name, view] : alone.tensors)
    fuzz::require(to_string(view) == to_string(index.tensors.at(name)));
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::SafetensorsIndex index = dsv4::parse_safetensors(bytes, "input");
    dsv4::check_tensors(index, size);
    dsv4::check_header(index, dsv4::fuzz::text(data, size));
  });
  return 0;
}
