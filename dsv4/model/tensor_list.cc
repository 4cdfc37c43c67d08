#include "dsv4/model/tensor_list.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/weight.h"
#include "dsv4/model/weight_table.h"

namespace dsv4 {
namespace {

class TensorLister final : public WeightVisitor {
 public:
  // routed: kMxfp4 or kNvfp4
  TensorLister(std::vector<NamedTensor>& list, WeightFormat routed)
      : list_(list), nvfp4_(routed == WeightFormat::kNvfp4) {}

  void matrix(WeightView&, const WeightSpec& spec, int64_t n, int64_t k) override {
    switch (spec.stored) {
      case Stored::kFp8:
        return fp8(spec.name, n, k);
      case Stored::kMxfp4:
        return fp4(spec.name, n, k);
      default:
        return add(spec.name + ".weight", spec.stored, {n, k});
    }
  }
  void grouped(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k, int64_t) override {
    matrix(weight, spec, n, k);
  }
  void floats(ConstTensorView&, const WeightSpec& spec,
              std::initializer_list<int64_t> shape) override {
    add(spec.name + ".weight", spec.stored, shape);
  }
  void f32(ConstTensorView&, const WeightSpec& spec,
           std::initializer_list<int64_t> shape) override {
    add(spec.name, spec.stored, shape);
  }
  void expert_ids(ConstTensorView&, const WeightSpec& spec,
                  std::initializer_list<int64_t> shape) override {
    add(spec.name, spec.stored, shape);
  }

 private:
  void add(std::string name, Stored stored, std::initializer_list<int64_t> shape) {
    const DType dtype = stored == Stored::kBF16  ? DType::kBF16
                        : stored == Stored::kI64 ? DType::kI64
                                                 : DType::kF32;
    list_.push_back({std::move(name), TensorMeta::contiguous(dtype, shape)});
  }

  void fp8(const std::string& prefix, int64_t n, int64_t k) {
    list_.push_back({prefix + ".weight", TensorMeta::contiguous(DType::kE4M3, {n, k})});
    list_.push_back({prefix + ".scale",
                     TensorMeta::contiguous(
                         DType::kE8M0, {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)})});
  }

  void fp4(const std::string& prefix, int64_t n, int64_t k) {
    if (k % kMxfp4Group != 0)
      fail(ErrorCode::kUnsupported, "{}: MXFP4 needs k to be a multiple of {}, k is {}", prefix,
           kMxfp4Group, k);
    list_.push_back(
        {prefix + ".weight", TensorMeta::contiguous(nvfp4_ ? DType::kU8 : DType::kI8, {n, k / 2})});
    if (!nvfp4_) {
      list_.push_back(
          {prefix + ".scale", TensorMeta::contiguous(DType::kE8M0, {n, k / kMxfp4Group})});
      return;
    }
    list_.push_back(
        {prefix + ".weight_scale", TensorMeta::contiguous(DType::kE4M3, {n, k / kNvfp4Group})});
    list_.push_back({prefix + ".weight_scale_2", TensorMeta::contiguous(DType::kF32, {1})});
  }

  std::vector<NamedTensor>& list_;
  const bool nvfp4_;
};

}  // namespace

int64_t total_bytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += tensor.meta.bytes();
  return bytes;
}

std::vector<NamedTensor> official_tensor_list(const ModelConfig& config, bool drafter,
                                              WeightFormat routed) {
  std::vector<NamedTensor> list;
  TensorLister writer(list, routed);
  ModelWeights weights;
  visit_weights(config, weights, writer);
  if (!drafter || drafter_kind(config) == DrafterKind::kNone) return list;
  DrafterWeights blocks{.kind = drafter_kind(config)};
  visit_drafter(config, blocks, writer);
  return list;
}

}  // namespace dsv4
