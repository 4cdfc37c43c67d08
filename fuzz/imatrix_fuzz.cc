// A whole imatrix file against a list of two k-bit weights.

#include <cstring>
#include <deque>
#include <span>

#include "dsv4/convert/imatrix.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

ConvertList small_list() {
  StoredTensors stored;
  for (const char* name : {"layers.0.attn.wkv.weight", "head.weight", "embed.weight"})
    stored[name] = TensorMeta::contiguous(DType::kF32, {4, 32});
  return convert_list(stored, parse_recipe("attn k3\nhead k2", "recipe"));
}

void check_input(std::span<const std::byte> bytes) {
  static const ConvertList list = small_list();
  // Aligned copies, like those that SafetensorsFile makes.
  std::deque<Buffer> copies;
  std::map<std::string, ConstTensorView> tensors = parse_safetensors(bytes, "input").tensors;
  for (auto& [name, view] : tensors) {
    std::byte* copy =
        copies.emplace_back(DType::kU8, std::initializer_list<int64_t>{view.bytes()}).view().data;
    if (view.bytes() > 0) std::memcpy(copy, view.data, static_cast<size_t>(view.bytes()));
    view.data = copy;
  }
  const ImatrixUse use = check_imatrix(tensors, list, "input");
  fuzz::require(use.used + use.missing == 2);
  fuzz::require(use.used <= static_cast<int64_t>(tensors.size() - use.unknown.size()));
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] { dsv4::check_input(std::as_bytes(std::span(data, size))); });
  return 0;
}
