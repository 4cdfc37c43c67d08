// A whole imatrix of llama.cpp, in either form, for a list of four k-bit weights.

#include <span>

#include "dsv4/convert/imatrix.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

ConvertList small_list() {
  StoredTensors stored;
  for (const char* name : {"layers.0.attn.wkv.weight", "layers.0.ffn.experts.0.w1.weight",
                           "layers.0.ffn.experts.1.w1.weight", "head.weight"})
    stored[name] = TensorMeta::contiguous(DType::kF32, {4, 32});
  return convert_list(stored, parse_recipe("experts k2\nattn k3\nhead k2", "recipe"));
}

void check_input(std::span<const std::byte> bytes) {
  static const ConvertList list = small_list();
  const LlamaImatrix file = parse_llama_imatrix(bytes, "input");
  for (const auto& [name, vector] : map_llama_imatrix(file, list, "input"))
    fuzz::require(file.entries.contains(name) || vector.size() == 32);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] { dsv4::check_input(std::as_bytes(std::span(data, size))); });
  return 0;
}
