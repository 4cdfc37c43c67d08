#include "dsv4/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/loader/shallow_json.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

// Reads typed values out of one JSON object and records which keys were read.
class Reader {
 public:
  Reader(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  // Null counts as absent: transformers writes null for "not set".
  const Json* find(const std::string& key) {
    seen_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int64_t integer(const std::string& key, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = {}) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr) missing(key);
    if (!value->is_number_integer()) wrong(key, "an integer", *value);
    const auto number = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{1} << 62
                            ? int64_t{1} << 62
                            : value->get<int64_t>();
    if (number < low || number > high)
      wrong(key, fmt::format("between {} and {}", low, high), *value);
    return number;
  }

  double number(const std::string& key, double low, double high,
                std::optional<double> fallback = {}) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr) missing(key);
    if (!value->is_number()) wrong(key, "a number", *value);
    const auto number = value->get<double>();
    if (!(number >= low && number <= high))
      wrong(key, fmt::format("between {} and {}", low, high), *value);
    return number;
  }

  bool boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false", *value);
    return value->get<bool>();
  }

  std::string text(const std::string& key, const std::string& fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) wrong(key, "a string", *value);
    return value->get<std::string>();
  }

  // A key that has one supported value; any other value would silently give wrong results.
  void only(const std::string& key, const Json& supported) {
    const Json* value = find(key);
    if (value != nullptr && *value != supported)
      wrong(key, supported.dump() + " (nothing else is supported)", *value);
  }

  std::optional<Reader> object(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_object()) wrong(key, "an object", *value);
    return Reader(*value, file_ + ": " + key);
  }

  void ignore(std::initializer_list<const char*> keys) { seen_.insert(keys.begin(), keys.end()); }

  // Appends the keys that were not read, prefixed with `prefix`.
  void unread(std::vector<std::string>& keys, const std::string& prefix = "") const {
    for (const auto& [key, value] : object_.items()) {
      if (seen_.count(key) == 0) keys.push_back(prefix + key);
    }
  }

  [[noreturn]] void missing(const std::string& key) const {
    fail(ErrorCode::kBadInput, "{}: {} is missing", file_, key);
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& want, const Json& got) const {
    std::string text = got.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    fail(ErrorCode::kBadInput, "{}: {} must be {}, got {}", file_, key, want, text);
  }
  const std::string& file() const { return file_; }

 private:
  const Json& object_;
  std::string file_;
  std::set<std::string> seen_;
};

constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxRatio = 65536;
constexpr int64_t kMaxKeys = 10000;
constexpr double kMinTheta = 1.0001, kMaxTheta = 1e12;  // a base of 1 would not rotate at all

void read_dims(Reader& in, ModelConfig& c) {
  c.hidden_size = in.integer("hidden_size", 1, kMaxDim);
  c.num_layers = in.integer("num_hidden_layers", 1, 4096);
  c.vocab_size = in.integer("vocab_size", 1, int64_t{1} << 24);
  c.num_heads = in.integer("num_attention_heads", 1, 4096);
  c.head_dim = in.integer("head_dim", 2, 65536);
  c.q_lora_rank = in.integer("q_lora_rank", 1, kMaxDim);
  c.o_groups = in.integer("o_groups", 1, 4096);
  c.o_lora_rank = in.integer("o_lora_rank", 1, kMaxDim);
  c.window = in.integer("sliding_window", 1, kMaxDim);
  c.index_heads = in.integer("index_n_heads", 1, 4096);
  c.index_dim = in.integer("index_head_dim", 1, 65536);
  c.index_topk = in.integer("index_topk", 1, kMaxDim);
  c.num_experts = in.integer("n_routed_experts", 1, 65536);
  c.experts_per_token = in.integer("num_experts_per_tok", 1, c.num_experts);
  c.expert_dim = in.integer("moe_intermediate_size", 1, kMaxDim);
  c.shared_experts = in.integer("n_shared_experts", 1, 64, 1);
  c.hc_mult = in.integer("hc_mult", 1, 8);  // kMaxStreams of ops/parts/mhc
  c.sinkhorn_iters = static_cast<int>(in.integer("hc_sinkhorn_iters", 1, 1000));
  c.max_positions = in.integer("max_position_embeddings", 1, int64_t{1} << 30);
  c.mtp_layers = in.integer("num_nextn_predict_layers", 0, 64, 0);
}

void read_scalars(Reader& in, ModelConfig& c) {
  c.normalize_weights = in.boolean("norm_topk_prob", true);
  c.route_scale = static_cast<float>(in.number("routed_scaling_factor", 0, 1e6));
  c.swiglu_limit = static_cast<float>(in.number("swiglu_limit", 0, 1e6));
  c.hc_eps = static_cast<float>(in.number("hc_eps", 0, 1));
  c.norm_eps = static_cast<float>(in.number("rms_norm_eps", 0, 1));
  c.bos = static_cast<int32_t>(in.integer("bos_token_id", 0, c.vocab_size - 1, -1));
  const Json* eos = in.find("eos_token_id");
  if (eos != nullptr) {
    for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= c.vocab_size) {
        in.wrong("eos_token_id", "token ids in the vocabulary", *eos);
      }
      c.eos.push_back(id.get<int32_t>());
    }
  }
  in.only("model_type", "deepseek_v4");
  in.only("num_key_value_heads", 1);
  in.only("hidden_act", "silu");
  in.only("scoring_func", "sqrtsoftplus");
  in.only("topk_method", "noaux_tc");
  in.only("attention_bias", false);
  in.only("mlp_bias", false);
  in.only("tie_word_embeddings", false);
  // Spellings of older transformers revisions.
  in.only("compress_rate_csa", released_ratio(LayerKind::kCsa));
  in.only("compress_rate_hca", released_ratio(LayerKind::kHca));
}

// qk_rope_head_dim, or transformers' partial_rotary_factor of head_dim.
void read_rope_dim(Reader& in, ModelConfig& c) {
  const double factor = in.number("partial_rotary_factor", 0, 1, 0.125);
  const auto from_factor =
      static_cast<int64_t>(std::llround(factor * static_cast<double>(c.head_dim)));
  c.rope_dim = in.integer("qk_rope_head_dim", 2, c.head_dim, from_factor);
  if (c.rope_dim % 2 != 0 || c.rope_dim < 2) {
    fail(ErrorCode::kBadInput, "{}: qk_rope_head_dim must be even, got {}", in.file(), c.rope_dim);
  }
}

YarnParams read_yarn(Reader& in, const ModelConfig& c) {
  YarnParams yarn;
  std::string type = in.text("type", "");
  type = in.text("rope_type", type);
  if (type.empty() &&
      (in.find("factor") != nullptr || in.find("original_max_position_embeddings") != nullptr)) {
    in.missing("type");
  }
  if (type.empty() || type == "default") return yarn;
  if (type != "yarn") in.wrong("type", "\"yarn\" or \"default\"", type);
  yarn.on = true;
  yarn.original_positions =
      in.number("original_max_position_embeddings", 1, 1e9, static_cast<double>(c.max_positions));
  yarn.factor = in.number("factor", 1e-3, 1e6,
                          static_cast<double>(c.max_positions) / yarn.original_positions);
  yarn.beta_fast = in.number("beta_fast", 1e-6, 1e9, 32.0);
  yarn.beta_slow = in.number("beta_slow", 1e-6, 1e9, 1.0);
  // The model scales neither cos/sin nor the softmax (docs/spec/dsv4.md 4.2).
  for (const char* key : {"attention_factor", "attn_factor", "mscale", "mscale_all_dim"})
    in.only(key, 1.0);
  in.ignore({"partial_rotary_factor", "rope_theta", "truncate"});
  return yarn;
}

void read_rope(Reader& in, ModelConfig& c) {
  c.rope_theta = in.number("rope_theta", kMinTheta, kMaxTheta, 10000.0);
  c.compress_rope_theta = in.number("compress_rope_theta", kMinTheta, kMaxTheta, 160000.0);
  if (auto scaling = in.object("rope_scaling")) {
    c.yarn = read_yarn(*scaling, c);
    scaling->unread(c.unknown, "rope_scaling.");
  }
  auto parameters = in.object("rope_parameters");
  if (!parameters) return;
  // transformers: nested values win over the top-level ones.
  if (auto main = parameters->object("main")) {
    c.rope_theta = main->number("rope_theta", kMinTheta, kMaxTheta, c.rope_theta);
    main->only("rope_type", "default");
    main->ignore({"partial_rotary_factor", "type"});
    main->unread(c.unknown, "rope_parameters.main.");
  }
  if (auto compress = parameters->object("compress")) {
    c.compress_rope_theta =
        compress->number("rope_theta", kMinTheta, kMaxTheta, c.compress_rope_theta);
    c.yarn = read_yarn(*compress, c);
    compress->unread(c.unknown, "rope_parameters.compress.");
  }
}

void add_layer(ModelConfig& c, LayerKind kind, int ratio) {
  c.kinds.push_back(kind);
  c.ratios.push_back(ratio);
}

void read_layer_types(Reader& in, const Json& types, ModelConfig& c) {
  constexpr const char *kCsaName = "compressed_sparse_attention",
                       *kHcaName = "heavily_compressed_attention";
  int csa = released_ratio(LayerKind::kCsa), hca = released_ratio(LayerKind::kHca);
  if (auto rates = in.object("compress_rates")) {
    csa = static_cast<int>(rates->integer(kCsaName, 1, kMaxRatio, csa));
    hca = static_cast<int>(rates->integer(kHcaName, 1, kMaxRatio, hca));
  }
  for (const Json& type : types) {
    if (type == "sliding_attention") {
      add_layer(c, LayerKind::kSwa, 0);
    } else if (type == kCsaName) {
      add_layer(c, LayerKind::kCsa, csa);
    } else if (type == kHcaName) {
      add_layer(c, LayerKind::kHca, hca);
    } else {
      in.wrong("layer_types",
               fmt::format("a list of sliding_attention, {}, {}", kCsaName, kHcaName), type);
    }
  }
}

// The official spelling gives ratios without kinds: a ratio has the kind that it has in the
// releases.
// Returns the entries after those of the layers: one for each drafter block.
int64_t read_compress_ratios(Reader& in, const Json& ratios, ModelConfig& c) {
  int64_t blocks = 0;
  for (const Json& value : ratios) {
    if (!value.is_number_integer()) in.wrong("compress_ratios", "a list of integers", value);
    if (static_cast<int64_t>(c.ratios.size()) == c.num_layers) {
      ++blocks;
      continue;
    }
    const auto ratio = static_cast<int>(std::clamp<int64_t>(value.get<int64_t>(), -1, kMaxDim));
    const std::optional<LayerKind> kind = kind_of_released_ratio(ratio);
    if (!kind) {
      fail(ErrorCode::kBadInput, "{}: compress_ratios must be 0, {} or {}, got {}", in.file(),
           released_ratio(LayerKind::kCsa), released_ratio(LayerKind::kHca), ratio);
    }
    add_layer(c, *kind, ratio);
  }
  return blocks;
}

// Returns the drafter blocks that it names; 0 where the spelling has none.
int64_t read_ratios(Reader& in, ModelConfig& c) {
  int64_t blocks = 0;
  const Json* types = in.find("layer_types");
  const Json* ratios = in.find("compress_ratios");
  in.ignore({"compress_rates"});
  if (types != nullptr) {
    if (!types->is_array()) in.wrong("layer_types", "a list", *types);
    read_layer_types(in, *types, c);
    if (ratios != nullptr) in.wrong("compress_ratios", "absent when layer_types is given", *ratios);
  } else {
    if (ratios == nullptr) in.missing("compress_ratios (or layer_types)");
    if (!ratios->is_array()) in.wrong("compress_ratios", "a list", *ratios);
    blocks = read_compress_ratios(in, *ratios, c);
  }
  if (static_cast<int64_t>(c.ratios.size()) < c.num_layers) {
    fail(ErrorCode::kBadInput, "{}: the layer schedule has {} entries for {} layers", in.file(),
         c.ratios.size(), c.num_layers);
  }
  c.kinds.resize(static_cast<size_t>(c.num_layers));  // drafter blocks come after the layers
  c.ratios.resize(static_cast<size_t>(c.num_layers));
  return blocks;
}

// blocks: entries of compress_ratios after those of the layers. The first releases have one block
// whatever the list says.
void read_dspark(Reader& in, int64_t blocks, ModelConfig& c) {
  constexpr int64_t kMaxBlock = 64;
  DsparkConfig& d = c.dspark;
  const std::array<const char*, 4> keys = {"dspark_block_size", "dspark_markov_rank",
                                           "dspark_noise_token_id", "dspark_target_layer_ids"};
  if (std::ranges::none_of(keys, [&](const char* key) { return in.find(key) != nullptr; })) return;
  d.block_size = in.integer(keys[0], 1, kMaxBlock);
  d.markov_rank = in.integer(keys[1], 1, kMaxDim);
  d.noise = static_cast<int32_t>(in.integer(keys[2], 0, c.vocab_size - 1));
  const Json* taps = in.find(keys[3]);
  if (taps == nullptr) in.missing(keys[3]);
  const std::string want =
      fmt::format("a list of layers from 0 to {} in ascending order", c.num_layers - 1);
  if (!taps->is_array() || taps->empty()) in.wrong(keys[3], want, *taps);
  for (const Json& tap : *taps) {
    const int64_t layer = tap.is_number_integer() ? tap.get<int64_t>() : -1;
    if (layer < 0 || layer >= c.num_layers || (!d.taps.empty() && layer <= d.taps.back()))
      in.wrong(keys[3], want, *taps);
    d.taps.push_back(layer);
  }
  c.mtp_layers = std::max(c.mtp_layers, blocks);
}

void read_hash_layers(Reader& in, ModelConfig& c) {
  const int64_t prefix = in.integer("num_hash_layers", 0, 4096, 3);
  for (int64_t l = 0; l < c.num_layers; ++l) c.hash_layers.push_back(l < prefix);
  const Json* types = in.find("mlp_layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int64_t>(types->size()) < c.num_layers) {
    in.wrong("mlp_layer_types", fmt::format("a list of {} entries", c.num_layers), *types);
  }
  for (size_t l = 0; l < c.hash_layers.size(); ++l) {
    const Json& type = (*types)[l];
    if (type != "hash_moe" && type != "moe")
      in.wrong("mlp_layer_types", "a list of hash_moe or moe", type);
    c.hash_layers[l] = type == "hash_moe";
  }
}

void validate(const ModelConfig& c, const std::string& file) {
  const auto multiple = [&](const char* what, int64_t value, int64_t of) {
    if (value % of != 0)
      fail(ErrorCode::kBadInput, "{}: {} = {} is not a multiple of {}", file, what, value, of);
  };
  multiple("num_attention_heads", c.num_heads, c.o_groups);
  const bool csa = std::find(c.kinds.begin(), c.kinds.end(), LayerKind::kCsa) != c.kinds.end();
  if (csa && c.index_dim < c.rope_dim) {
    fail(ErrorCode::kBadInput, "{}: index_head_dim = {} is smaller than qk_rope_head_dim = {}",
         file, c.index_dim, c.rope_dim);
  }
}

}  // namespace

const char* name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kNone:
      return "none";
    case DrafterKind::kMtp:
      return "mtp";
    case DrafterKind::kDspark:
      return "dspark";
  }
  return "unknown";
}

DrafterKind drafter_kind(const ModelConfig& config) {
  if (config.mtp_layers == 0) return DrafterKind::kNone;
  return config.dspark.empty() ? DrafterKind::kMtp : DrafterKind::kDspark;
}

int64_t drafter_blocks(const ModelConfig& config, DrafterKind kind) {
  return kind == DrafterKind::kNone ? 0 : kind == DrafterKind::kMtp ? 1 : config.mtp_layers;
}

ModelConfig parse_config(std::string_view json, const std::string& file) {
  // The converter writes the keys again in their order, in a time that grows with their square.
  const Json root = parse_shallow_json(json, file, kMaxKeys);
  if (!root.is_object()) fail(ErrorCode::kBadInput, "{}: want a JSON object", file);
  Reader in(root, file);
  ModelConfig config;
  read_dims(in, config);
  read_scalars(in, config);
  read_rope_dim(in, config);
  read_rope(in, config);
  const int64_t blocks = read_ratios(in, config);
  read_dspark(in, blocks, config);
  read_hash_layers(in, config);
  validate(config, file);
  // Ignored: keys about training or bookkeeping, or implied by the stored tensors.
  in.ignore({"architectures", "attention_dropout", "dtype", "torch_dtype", "expert_dtype",
             "initializer_range", "quantization_config", "transformers_version", "use_cache",
             "pad_token_id", "output_router_logits", "router_aux_loss_coef",
             "router_jitter_noise"});
  in.unread(config.unknown);
  return config;
}

ModelConfig load_config(const std::string& file) {
  return parse_config(read_text_file(file, size_t{16} << 20), file);
}

}  // namespace dsv4
