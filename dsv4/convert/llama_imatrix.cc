#include "dsv4/convert/llama_imatrix.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

// Official names after "layers.N." or "mtp.0.", and llama.cpp's after "blk.N.".
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"attn.wq_a", "attn_q_a"},
    {"attn.wq_b", "attn_q_b"},
    {"attn.wkv", "attn_kv"},
    {"attn.wo_a", "attn_output_a"},
    {"attn.wo_b", "attn_output_b"},
    {"attn.compressor.wkv", "attn_compressor_kv"},
    {"attn.compressor.wgate", "attn_compressor_gate"},
    {"attn.indexer.wq_b", "indexer.attn_q_b"},
    {"attn.indexer.weights_proj", "indexer.proj"},
    {"attn.indexer.compressor.wkv", "indexer_compressor_kv"},
    {"attn.indexer.compressor.wgate", "indexer_compressor_gate"},
    {"ffn.gate", "ffn_gate_inp"},
    {"ffn.shared_experts.w1", "ffn_gate_shexp"},
    {"ffn.shared_experts.w2", "ffn_down_shexp"},
    {"ffn.shared_experts.w3", "ffn_up_shexp"},
    {"ffn.experts.w1", "ffn_gate_exps"},
    {"ffn.experts.w2", "ffn_down_exps"},
    {"ffn.experts.w3", "ffn_up_exps"},
    {"e_proj", "nextn.e_proj"},
    {"h_proj", "nextn.h_proj"},
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string text(uint64_t length) {
    const auto* chars = reinterpret_cast<const char*>(take(length));
    return {chars, length};
  }
  std::vector<float> floats(uint64_t count) {
    if (count > bytes_.size() / sizeof(float)) end();
    const std::byte* const from = take(count * sizeof(float));
    std::vector<float> values(count);
    if (count > 0) std::memcpy(values.data(), from, count * sizeof(float));
    return values;
  }
  const std::byte* take(uint64_t count) {
    if (count > bytes_.size() - at_) end();
    const std::byte* const from = bytes_.data() + at_;
    at_ += count;
    return from;
  }
  void seek(uint64_t place) {
    if (place > bytes_.size()) end();
    at_ = place;
  }
  uint64_t place() const { return at_; }
  [[noreturn]] void reject(const std::string& why) const {
    fail(ErrorCode::kBadInput, "{}: {} at byte {}: this is no imatrix of llama.cpp", what_, why,
         at_);
  }

 private:
  [[noreturn]] void end() const { reject("the file ends in the middle"); }

  const std::span<const std::byte> bytes_;
  const std::string& what_;
  uint64_t at_ = 0;
};

// Values of metadata in GGUF files.
constexpr uint32_t kU32 = 4, kString = 8, kArray = 9;

uint64_t bytes_of(Reader& in, uint32_t type) {
  constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type >= std::size(kBytes) || kBytes[type] == 0)
    in.reject(fmt::format("metadata of type {}", type));
  return kBytes[type];
}

void skip_text(Reader& in) {
  in.take(in.number<uint64_t>());
}

void skip_array(Reader& in) {
  const auto type = in.number<uint32_t>();
  const auto count = in.number<uint64_t>();
  if (type == kString) {
    for (uint64_t i = 0; i < count; ++i) skip_text(in);
    return;
  }
  const uint64_t bytes = bytes_of(in, type);
  if (count > UINT64_MAX / bytes) in.reject("an array without end");
  in.take(count * bytes);
}

// Returns the alignment of the tensors' data.
uint64_t skip_metadata(Reader& in, uint64_t count) {
  uint64_t alignment = 32;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.text(in.number<uint64_t>());
    const auto type = in.number<uint32_t>();
    if (key == "general.alignment" && type == kU32) {
      alignment = in.number<uint32_t>();
      if (alignment == 0) in.reject("an alignment of 0");
    } else if (type == kString) {
      skip_text(in);
    } else if (type == kArray) {
      skip_array(in);
    } else {
      in.take(bytes_of(in, type));
    }
  }
  return alignment;
}

struct GgufTensor {
  uint64_t columns = 1, rows = 1, offset = 0;
};

GgufTensor read_tensor_info(Reader& in, const std::string& name) {
  GgufTensor tensor;
  const auto rank = in.number<uint32_t>();
  if (rank > 4) in.reject(fmt::format("{} has {} dimensions", quotable(name), rank));
  for (uint32_t axis = 0; axis < rank; ++axis) {
    const auto size = in.number<uint64_t>();
    uint64_t& to = axis == 0 ? tensor.columns : tensor.rows;
    if (size == 0 || size > uint64_t{1} << 31 || to > (uint64_t{1} << 31) / size)
      in.reject(fmt::format("{} has a dimension of {}", quotable(name), size));
    to *= size;
  }
  const auto type = in.number<uint32_t>();
  if (type != 0) in.reject(fmt::format("{} is not F32", quotable(name)));
  tensor.offset = in.number<uint64_t>();
  return tensor;
}

LlamaImatrix parse_gguf(Reader& in) {
  in.take(4);
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != 3) in.reject(fmt::format("GGUF version {}", version));
  const auto count = in.number<uint64_t>(), metadata = in.number<uint64_t>();
  const uint64_t alignment = skip_metadata(in, metadata);
  std::map<std::string, GgufTensor> tensors;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = in.text(in.number<uint64_t>());
    tensors[name] = read_tensor_info(in, name);
  }
  const uint64_t data = (in.place() + alignment - 1) / alignment * alignment;
  const auto values = [&](const GgufTensor& tensor) {
    if (tensor.offset > UINT64_MAX - data) in.reject("a tensor outside of the file");
    in.seek(data + tensor.offset);
    return in.floats(tensor.columns * tensor.rows);
  };
  LlamaImatrix result;
  constexpr std::string_view kSums = ".in_sum2";
  for (const auto& [name, sums] : tensors) {
    if (!name.ends_with(kSums)) continue;
    const std::string weight = name.substr(0, name.size() - kSums.size());
    const auto counts = tensors.find(weight + ".counts");
    if (counts == tensors.end() || counts->second.columns * counts->second.rows != sums.rows)
      in.reject(fmt::format("{} without one count for each matrix", quotable(weight)));
    LlamaImatrix::Entry& entry = result.entries[weight];
    entry.values = values(sums), entry.counts = values(counts->second);
    for (uint64_t i = 0; i < entry.values.size(); ++i) {
      const float tokens = entry.counts[i / sums.columns];
      entry.values[i] = tokens > 0 ? entry.values[i] / tokens : 0.f;
    }
  }
  return result;
}

LlamaImatrix parse_legacy(Reader& in) {
  const auto count = in.number<int32_t>();
  if (count < 1) in.reject(fmt::format("{} entries", count));
  LlamaImatrix result;
  for (int32_t i = 0; i < count; ++i) {
    const auto length = in.number<int32_t>();
    if (length < 1) in.reject(fmt::format("a name of {} bytes", length));
    const std::string name = in.text(static_cast<uint64_t>(length));
    const auto calls = in.number<int32_t>(), values = in.number<int32_t>();
    if (calls < 1 || values < 1)
      in.reject(fmt::format("{} has {} calls and {} values", quotable(name), calls, values));
    LlamaImatrix::Entry& entry = result.entries[name];
    entry.values = in.floats(static_cast<uint64_t>(values));
    for (float& value : entry.values) value /= static_cast<float>(calls);
  }
  return result;
}

// "7.w1" -> 7, "w1"; false where it does not begin with a number.
bool split_number(std::string_view text, int64_t* number, std::string_view* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return false;
  *rest = text.substr(static_cast<size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

bool is_gguf(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

LlamaImatrix parse_llama_imatrix(std::span<const std::byte> bytes, const std::string& what) {
  Reader in(bytes, what);
  return is_gguf(bytes) ? parse_gguf(in) : parse_legacy(in);
}

LlamaName llama_name(std::string_view weight, int64_t layers) {
  if (weight == "head") return {"output.weight"};
  if (weight == "embed") return {"token_embd.weight"};
  int64_t layer = 0, expert = -1;
  std::string_view rest;
  if (weight.starts_with("layers.")) {
    if (!split_number(weight.substr(7), &layer, &rest)) return {};
  } else if (weight.starts_with("mtp.")) {
    if (!split_number(weight.substr(4), &layer, &rest)) return {};
    layer += layers;
  } else {
    return {};
  }
  std::string leaf(rest);
  constexpr std::string_view kExperts = "ffn.experts.";
  if (rest.starts_with(kExperts)) {
    std::string_view matrix;
    if (!split_number(rest.substr(kExperts.size()), &expert, &matrix)) return {};
    leaf = std::string(kExperts) + std::string(matrix);
  }
  for (const auto& [official, llama] : kNames)
    if (leaf == official) return {fmt::format("blk.{}.{}.weight", layer, llama), expert};
  return {};
}

}  // namespace dsv4
