#include "dsv4/engine/draft_head.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

bool is_copied(const Model& model) {
  const WeightView& head = model.weights().head;
  return head.n > 0 && !head.quantized_activations() && head.k % kKbitBlock == 0;
}

// The largest magnitude of a head, where it is.
float largest_of(const Model& model, Memory& memory) {
  const ConstTensorView& head = model.weights().head.data;
#if DSV4_CUDA
  if (model.device() != nullptr) {
    const Buffer bits(DType::kI32, {1}, memory);
    largest_magnitude_on(*model.device(), head, bits.as<int32_t>());
    int32_t most = 0;
    memory.download(reinterpret_cast<std::byte*>(&most), bits.view().data, sizeof most);
    return std::bit_cast<float>(most);
  }
#else
  static_cast<void>(memory);
#endif
  return largest_magnitude(head);
}

WeightView view_of(const Model& model, const ConstTensorView& planes, const ConstTensorView& scales,
                   const ConstTensorView& codebook) {
  const WeightView& head = model.weights().head;
  return {.format = WeightFormat::kKbit,
          .n = head.n,
          .k = head.k,
          .data = planes,
          .scale = scales,
          .bits = kDraftHeadBits,
          .codebook = codebook,
          .e4m3_codebook = true};
}

}  // namespace

DraftHead::DraftHead(const Model& model, Memory& memory) {
  if (!is_copied(model)) return;
  const WeightView& head = model.weights().head;
  const int64_t blocks = head.k / kKbitBlock;
  const Codebook book = e4m3_codebook(kDraftHeadBits);
  planes_ = Buffer(DType::kI32, {head.n, blocks * kDraftHeadBits}, memory);
  scales_ = Buffer(DType::kU8, {head.n, blocks}, memory);
  codebook_ = Buffer(DType::kF32, {book.size()}, memory);
  memory.upload(codebook_.view().data, reinterpret_cast<const std::byte*>(book.values().data()),
                static_cast<int64_t>(book.values().size_bytes()));
  view_ = view_of(model, planes_, scales_, codebook_);
  view_.scale2 = choose_tensor_scale(largest_of(model, memory));
  const Context context{.device = model.device()};
  quantize_kbit(context, {.x = head.data,
                          .codebook = book,
                          .tensor_scale = view_.scale2,
                          .planes = planes_,
                          .scales = scales_});
}

int64_t DraftHead::bytes(const Model& model) {
  if (!is_copied(model)) return 0;
  const WeightView& head = model.weights().head;
  const int64_t blocks = head.n * (head.k / kKbitBlock);
  return blocks * (kDraftHeadBits * item_bytes(DType::kI32) + 1) +
         (item_bytes(DType::kF32) << kDraftHeadBits);
}

WeightView draft_head_shape(const Model& model) {
  if (!is_copied(model)) return {};
  const WeightView& head = model.weights().head;
  const int64_t blocks = head.k / kKbitBlock;
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> shape) {
    return ConstTensorView(TensorMeta::contiguous(dtype, shape), unmapped_address(0));
  };
  return view_of(model, tensor(DType::kI32, {head.n, blocks * kDraftHeadBits}),
                 tensor(DType::kU8, {head.n, blocks}),
                 tensor(DType::kF32, {int64_t{1} << kDraftHeadBits}));
}

}  // namespace dsv4
