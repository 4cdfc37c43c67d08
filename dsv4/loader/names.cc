#include "dsv4/loader/names.h"

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {
namespace {

// A stacked tensor with more experts than this is a malicious shape (Pro has 384).
constexpr int64_t kMaxStackedExperts = 65536;

struct Rule {
  std::string_view from, to;  // whole path components
};

// Each rule is applied once, in this order; later rules see the output of earlier ones.
constexpr Rule kRules[] = {
    // Top level.
    {".embed_tokens.", ".embed."},
    {".lm_head.", ".head."},
    {".hc_head.hc_fn.", ".hc_head_fn."},
    {".hc_head.hc_base.", ".hc_head_base."},
    {".hc_head.hc_scale.", ".hc_head_scale."},
    // The head of a drafter that is spelled as one layer more.
    {".shared_head.norm.", ".norm."},
    {".shared_head.head.", ".head."},
    // Block.
    {".self_attn.", ".attn."},
    {".mlp.", ".ffn."},
    {".input_layernorm.", ".attn_norm."},
    {".post_attention_layernorm.", ".ffn_norm."},
    {".attn_hc.fn.", ".hc_attn_fn."},
    {".attn_hc.base.", ".hc_attn_base."},
    {".attn_hc.scale.", ".hc_attn_scale."},
    {".ffn_hc.fn.", ".hc_ffn_fn."},
    {".ffn_hc.base.", ".hc_ffn_base."},
    {".ffn_hc.scale.", ".hc_ffn_scale."},
    // Indexer: transformers nests it inside the compressor and flattens the indexer's own
    // compressor.
    {".compressor.indexer.", ".indexer."},
    {".indexer.scorer.", ".indexer."},
    {".indexer.q_b_proj.", ".indexer.wq_b."},
    {".indexer.kv_proj.", ".indexer.compressor.wkv."},
    {".indexer.gate_proj.", ".indexer.compressor.wgate."},
    {".indexer.position_bias.", ".indexer.compressor.ape."},
    {".indexer.kv_norm.", ".indexer.compressor.norm."},
    {".indexer.norm.", ".indexer.compressor.norm."},
    // Compressor.
    {".compressor.kv_proj.", ".compressor.wkv."},
    {".compressor.gate_proj.", ".compressor.wgate."},
    {".compressor.position_bias.", ".compressor.ape."},
    {".compressor.kv_norm.", ".compressor.norm."},
    // Attention. transformers 5.23 saves kv_norm as norm (its rule that renames norm, reversed).
    {".attn.sinks.", ".attn.attn_sink."},
    {".attn.norm.", ".attn.kv_norm."},
    {".attn.q_a_proj.", ".attn.wq_a."},
    {".attn.q_a_norm.", ".attn.q_norm."},
    {".attn.q_b_proj.", ".attn.wq_b."},
    {".attn.kv_proj.", ".attn.wkv."},
    {".attn.o_a_proj.", ".attn.wo_a."},
    {".attn.o_b_proj.", ".attn.wo_b."},
    // Feed-forward.
    {".gate.e_score_correction_bias.", ".gate.bias."},
    {".experts.gate_up_proj_scale_inv.", ".experts.w1w3.scale."},
    {".experts.down_proj_scale_inv.", ".experts.w2.scale."},
    {".experts.gate_up_proj.", ".experts.w1w3."},
    {".gate_proj.", ".w1."},
    {".up_proj.", ".w3."},
    {".down_proj.", ".w2."},
    // Leaves.
    {".weight_scale_inv.", ".scale."},
};

std::string_view without_prefix(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix ? text.substr(prefix.size()) : text;
}

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

constexpr std::string_view kStackedPair = ".experts.w1w3.", kStackedDown = ".experts.w2.";

// Whether a file can hold a tensor of this name. Renaming may leave nothing, or too much.
bool can_be_stored(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTensorName && name != "__metadata__";
}

// The bit of a letter; any other character shares the bit of some letter.
uint32_t letter_bit(char c) {
  return uint32_t{1} << (static_cast<unsigned char>(c) & 31);
}

// The initial letters of a name's components. Most rules do not apply to most names, and a
// checkpoint has 10^5 of them: the bits rule those out without a search.
uint32_t initials(std::string_view name) {
  uint32_t bits = 0;
  for (size_t at = 0; at + 1 < name.size(); ++at) {
    if (name[at] == '.') bits |= letter_bit(name[at + 1]);
  }
  return bits;
}

}  // namespace

std::string official_name(std::string_view stored) {
  // The dots at both ends let every rule match whole components.
  std::string name = fmt::format(".{}.", without_prefix(stored, "model."));
  uint32_t present = initials(name);
  for (const Rule& rule : kRules) {
    if ((present & letter_bit(rule.from[1])) == 0) continue;
    const size_t at = name.find(rule.from);
    if (at == std::string::npos) continue;
    name.replace(at, rule.from.size(), rule.to);
    present = initials(name);
  }
  if (ends_with(name, kStackedPair) || ends_with(name, kStackedDown)) name += "weight.";
  name = name.substr(1, name.size() - 2);
  return can_be_stored(name) ? name : std::string(stored);
}

std::vector<OfficialTensor> official_tensors(std::string_view stored, const ConstTensorView& view) {
  const std::string name = official_name(stored);
  const bool pair = name.find(kStackedPair) != std::string::npos;
  if (!pair && name.find(kStackedDown) == std::string::npos) return {{name, view}};

  if (view.rank != 3 || view.dim(0) > kMaxStackedExperts || (pair && view.dim(1) % 2 != 0)) {
    fail(ErrorCode::kBadInput, "{}: want [experts, {}, columns], got {}", quotable(stored),
         pair ? "2 x rows" : "rows", to_string(view));
  }
  if (name.size() + std::string_view("65535.").size() > kMaxTensorName)
    fail(ErrorCode::kBadInput, "{}: too long for the names of its experts", quotable(stored));
  // "layers.3.ffn.experts." and ".weight"
  const size_t split = name.find(".experts.") + std::string_view(".experts.").size();
  const std::string head = name.substr(0, split), tail = name.substr(name.find('.', split));
  const int64_t rows = view.dim(1), columns = view.dim(2);
  std::vector<OfficialTensor> slices;
  for (int64_t e = 0; e < view.dim(0); ++e) {
    const ConstTensorView expert = view.slice(0, e, e + 1).reshape({rows, columns});
    if (pair) {
      slices.push_back(
          {fmt::format("{}{}.w1{}", head, e, tail), expert.slice(0, 0, rows / 2), true});
      slices.push_back(
          {fmt::format("{}{}.w3{}", head, e, tail), expert.slice(0, rows / 2, rows), true});
    } else {
      slices.push_back({fmt::format("{}{}.w2{}", head, e, tail), expert});
    }
  }
  return slices;
}

}  // namespace dsv4
