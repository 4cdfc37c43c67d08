// A recipe, its effect on a small checkpoint, and the same bytes as a codebook.

#include "dsv4/convert/convert_list.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

StoredTensors small_checkpoint() {
  const auto meta = [](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorMeta::contiguous(dtype, shape);
  };
  return {{"embed.weight", meta(DType::kBF16, {8, 64})},
          {"head.weight", meta(DType::kBF16, {8, 64})},
          {"layers.0.attn.wo_a.weight", meta(DType::kF32, {8, 40})},
          {"layers.0.attn.wq_b.weight", meta(DType::kE4M3, {130, 64})},
          {"layers.0.attn.wq_b.scale", meta(DType::kE8M0, {2, 1})},
          {"layers.1.ffn.experts.0.w1.weight", meta(DType::kI8, {4, 32})},
          {"layers.1.ffn.experts.0.w1.scale", meta(DType::kE8M0, {4, 2})},
          {"layers.1.ffn.experts.0.w2.weight", meta(DType::kI32, {4, 2, 3})},
          {"layers.1.ffn.experts.0.w2.scale", meta(DType::kU8, {4, 2})},
          {"layers.1.ffn.experts.0.w2.codebook", meta(DType::kF32, {8})},
          {"layers.1.ffn.shared_experts.w1.weight", meta(DType::kU8, {4, 32})},
          {"mtp.0.ffn.experts.0.w1.weight", meta(DType::kF16, {4, 32})},
          {"norm.weight", meta(DType::kBF16, {64})}};
}

void check_recipe(std::string_view text) {
  static const StoredTensors stored = small_checkpoint();
  const Recipe recipe = parse_recipe(text, "input");
  const ConvertList list = convert_list(stored, recipe);
  int64_t bytes = 0;
  for (const OutputItem& item : list.items) {
    bytes += item.bytes();
    const bool has_book = item.target.book != Target::Book::kDefault;
    fuzz::require(!item.tensors.empty());
    fuzz::require(has_book == (item.target.kind == Target::Kind::kKbit));
    fuzz::require(item.kept.empty() || !item.converted());
    // The text of a target parses back to it.
    if (item.target.file.empty()) {
      const Recipe again = parse_recipe("experts " + to_string(item.target), "again");
      fuzz::require(again.rules.at(0).target == item.target);
    }
  }
  fuzz::require(bytes == list.bytes && list.source_bytes == convert_list(stored, {}).bytes);
  // Appending a recipe to itself changes nothing.
  Recipe twice = recipe;
  twice.append(recipe);
  fuzz::require(convert_list(stored, twice).bytes == bytes);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = dsv4::fuzz::text(data, size);
  dsv4::fuzz::allow_bad_input([&] { dsv4::check_recipe(text); });
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::Codebook book = dsv4::parse_codebook(text, 2, "input");
    dsv4::fuzz::require(book.bits == 2 && book.largest() > 0);
  });
  return 0;
}
