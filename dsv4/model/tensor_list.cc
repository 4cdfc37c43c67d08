#include "dsv4/model/tensor_list.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/weight.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

class ListWriter {
 public:
  ListWriter(const ModelConfig& config, std::vector<NamedTensor>& list) : c_(config), list_(list) {}

  void main() {
    add("embed.weight", DType::kBF16, {c_.vocab_size, c_.hidden_size});
    add("head.weight", DType::kBF16, {c_.vocab_size, c_.hidden_size});
    add("norm.weight", DType::kBF16, {c_.hidden_size});
    hyper("hc_head", c_.hc_mult, 1);
    const std::vector<LayerSpec> schedule = layer_schedule(c_);
    for (size_t l = 0; l < schedule.size(); ++l) layer(fmt::format("layers.{}.", l), schedule[l]);
  }

  void drafter(int64_t block) {
    const std::string at = fmt::format("mtp.{}.", block);
    layer(at, {});
    for (const char* projection : {"e_proj", "h_proj"})
      fp8(at + projection, c_.hidden_size, c_.hidden_size);
    for (const char* norm : {"enorm", "hnorm", "norm"})
      add(at + norm + ".weight", DType::kBF16, {c_.hidden_size});
    hyper(at + "hc_head", c_.hc_mult, 1);
  }

 private:
  void add(std::string name, DType dtype, std::initializer_list<int64_t> shape) {
    list_.push_back({std::move(name), TensorMeta::contiguous(dtype, shape)});
  }

  void fp8(const std::string& prefix, int64_t n, int64_t k) {
    add(prefix + ".weight", DType::kE4M3, {n, k});
    add(prefix + ".scale", DType::kE8M0, {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)});
  }

  void mxfp4(const std::string& prefix, int64_t n, int64_t k) {
    if (k % kMxfp4Group != 0)
      fail(ErrorCode::kUnsupported, "{}: MXFP4 needs k to be a multiple of {}, k is {}", prefix,
           kMxfp4Group, k);
    add(prefix + ".weight", DType::kI8, {n, k / 2});
    add(prefix + ".scale", DType::kE8M0, {n, k / kMxfp4Group});
  }

  void hyper(const std::string& prefix, int64_t rows, int64_t scales) {
    add(prefix + "_fn", DType::kF32, {rows, c_.hc_mult * c_.hidden_size});
    add(prefix + "_base", DType::kF32, {rows});
    add(prefix + "_scale", DType::kF32, {scales});
  }

  void layer(const std::string& at, const LayerSpec& spec) {
    const int64_t mixes = c_.hc_mult * (2 + c_.hc_mult);
    for (const char* part : {"attn", "ffn"}) {
      hyper(fmt::format("{}hc_{}", at, part), mixes, 3);
      add(fmt::format("{}{}_norm.weight", at, part), DType::kBF16, {c_.hidden_size});
    }
    attention(at + "attn.", spec);
    feed_forward(at + "ffn.", spec);
  }

  void attention(const std::string& at, const LayerSpec& spec) {
    const int64_t heads_out = c_.num_heads * c_.head_dim, lora = c_.o_groups * c_.o_lora_rank;
    fp8(at + "wq_a", c_.q_lora_rank, c_.hidden_size);
    add(at + "q_norm.weight", DType::kBF16, {c_.q_lora_rank});
    fp8(at + "wq_b", heads_out, c_.q_lora_rank);
    fp8(at + "wkv", c_.head_dim, c_.hidden_size);
    add(at + "kv_norm.weight", DType::kBF16, {c_.head_dim});
    add(at + "attn_sink", DType::kF32, {c_.num_heads});
    fp8(at + "wo_a", lora, heads_out / c_.o_groups);
    fp8(at + "wo_b", c_.hidden_size, lora);
    if (spec.kind != LayerKind::kSwa) compressor(at + "compressor.", spec, c_.head_dim);
    if (spec.kind != LayerKind::kCsa) return;
    fp8(at + "indexer.wq_b", c_.index_heads * c_.index_dim, c_.q_lora_rank);
    add(at + "indexer.weights_proj.weight", DType::kBF16, {c_.index_heads, c_.hidden_size});
    compressor(at + "indexer.compressor.", spec, c_.index_dim);
  }

  void compressor(const std::string& at, const LayerSpec& spec, int64_t width) {
    const int64_t columns = state_layout(spec, width).columns();
    add(at + "wkv.weight", DType::kBF16, {columns, c_.hidden_size});
    add(at + "wgate.weight", DType::kBF16, {columns, c_.hidden_size});
    add(at + "ape", DType::kF32, {spec.ratio, columns});
    add(at + "norm.weight", DType::kBF16, {width});
  }

  void feed_forward(const std::string& at, const LayerSpec& spec) {
    add(at + "gate.weight", DType::kBF16, {c_.num_experts, c_.hidden_size});
    if (spec.hash_routing) {
      add(at + "gate.tid2eid", DType::kI64, {c_.vocab_size, c_.experts_per_token});
    } else {
      add(at + "gate.bias", DType::kF32, {c_.num_experts});
    }
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", at, e);
      mxfp4(expert + "w1", c_.expert_dim, c_.hidden_size);
      mxfp4(expert + "w2", c_.hidden_size, c_.expert_dim);
      mxfp4(expert + "w3", c_.expert_dim, c_.hidden_size);
    }
    const int64_t shared = c_.expert_dim * c_.shared_experts;
    fp8(at + "shared_experts.w1", shared, c_.hidden_size);
    fp8(at + "shared_experts.w2", c_.hidden_size, shared);
    fp8(at + "shared_experts.w3", shared, c_.hidden_size);
  }

  const ModelConfig& c_;
  std::vector<NamedTensor>& list_;
};

}  // namespace

int64_t total_bytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += tensor.meta.bytes();
  return bytes;
}

std::vector<NamedTensor> official_tensor_list(const ModelConfig& config, bool mtp) {
  std::vector<NamedTensor> list;
  ListWriter writer(config, list);
  writer.main();
  for (int64_t block = 0; mtp && block < config.mtp_layers; ++block) writer.drafter(block);
  return list;
}

}  // namespace dsv4
