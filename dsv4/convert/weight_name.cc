#include "dsv4/convert/weight_name.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <vector>

namespace dsv4 {
namespace {

// A matrix of the weight table; its key is its name with '#' in place of every number.
struct Matrix {
  WeightPart part;
  std::string_view leaf;
};

constexpr std::string_view kDrafterBlock = "mtp.#.";

bool is_number(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

// "layers.3.attn.wq_b" -> "layers.#.attn.wq_b"
std::string without_numbers(std::string_view name) {
  std::string text;
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot);
    text += is_number(word) ? "#" : word;
    if (dot == std::string_view::npos) return text;
    text += '.';
    name.remove_prefix(dot + 1);
  }
}

// Every weight that any layer or drafter block can have.
class Names final : public WeightVisitor {
 public:
  Names() {
    ModelConfig config;
    config.o_groups = 1;
    config.num_experts = 1;
    config.num_layers = 2;
    config.kinds = {LayerKind::kCsa, LayerKind::kSwa};
    config.ratios = {released_ratio(LayerKind::kCsa), 0};
    config.hash_layers = {false, true};
    ModelWeights weights;
    visit_weights(config, weights, *this);
    config.mtp_layers = 1;
    config.dspark = {.block_size = 1, .markov_rank = 1, .noise = 0, .taps = {0}};
    for (const DrafterKind kind : {DrafterKind::kMtp, DrafterKind::kDspark}) {
      DrafterWeights drafter{.kind = kind};
      visit_drafter(config, drafter, *this);
    }
  }

  // Null when no matrix has this name.
  const Matrix* find(std::string_view name) const {
    const std::string pattern = without_numbers(name);
    auto at = matrices_.find(pattern);
    // The layer of a drafter block may be of any kind.
    if (at == matrices_.end() && pattern.starts_with(kDrafterBlock))
      at = matrices_.find("layers.#." + pattern.substr(kDrafterBlock.size()));
    return at == matrices_.end() ? nullptr : &at->second;
  }
  // The part of a tensor that is not a matrix; kOther for a name that the model does not have.
  WeightPart part_of_tensor(std::string_view name) const {
    const auto at = tensors_.find(without_numbers(name));
    return at == tensors_.end() ? WeightPart::kOther : at->second;
  }
  std::span<const std::string_view> leaves(WeightPart part) const {
    const auto at = leaves_.find(part);
    return at == leaves_.end() ? std::span<const std::string_view>() : at->second;
  }

  void matrix(WeightView&, const WeightSpec& spec, int64_t, int64_t) override { add(spec); }
  void grouped(WeightView&, const WeightSpec& spec, int64_t, int64_t, int64_t) override {
    add(spec);
  }
  void floats(ConstTensorView&, const WeightSpec& spec, std::initializer_list<int64_t>) override {
    if (spec.part == WeightPart::kEmbed) return add(spec);
    tensors_.emplace(without_numbers(spec.name + ".weight"), spec.part);
  }
  void f32(ConstTensorView&, const WeightSpec& spec, std::initializer_list<int64_t>) override {
    tensors_.emplace(without_numbers(spec.name), spec.part);
  }
  void expert_ids(ConstTensorView&, const WeightSpec& spec,
                  std::initializer_list<int64_t>) override {
    tensors_.emplace(without_numbers(spec.name), spec.part);
  }

 private:
  void add(const WeightSpec& spec) {
    matrices_.emplace(without_numbers(spec.name), Matrix{spec.part, spec.leaf});
    auto& all = leaves_[spec.part];
    if (!spec.leaf.empty() && std::find(all.begin(), all.end(), spec.leaf) == all.end())
      all.push_back(spec.leaf);
  }

  std::map<std::string, Matrix> matrices_;
  std::map<std::string, WeightPart> tensors_;
  std::map<WeightPart, std::vector<std::string_view>> leaves_;
};

const Names& names() {
  static const Names all;
  return all;
}

bool take(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// The number before the next dot; -1 if there is none that fits in an int.
int take_number(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<size_t>(end - text.data());
  const bool ends = digits < text.size() && text[digits] == '.';
  return error == std::errc() && number >= 0 && ends ? number : -1;
}

}  // namespace

std::span<const std::string_view> leaves(WeightPart part) {
  return names().leaves(part);
}

WeightName weight_name(std::string_view prefix) {
  WeightName weight;
  std::string_view rest = prefix;
  weight.drafter = take(&rest, "mtp.");
  const bool in_layer = !weight.drafter && take(&rest, "layers.");
  if (weight.drafter || in_layer) {
    const int number = take_number(rest);
    if (number < 0) return weight;
    if (in_layer) weight.layer = number;
  }
  if (const Matrix* matrix = names().find(prefix)) {
    weight.part = matrix->part;
    weight.leaf = matrix->leaf;
  }
  return weight;
}

WeightPart part_of_tensor(std::string_view name) {
  return names().part_of_tensor(name);
}

bool is_dense(const WeightName& weight) {
  return weight.part == WeightPart::kAttention || weight.part == WeightPart::kSharedExperts ||
         weight.part == WeightPart::kDrafter ||
         (weight.part == WeightPart::kIndexer && weight.leaf == "wq_b");
}

}  // namespace dsv4
