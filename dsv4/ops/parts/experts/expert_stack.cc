#include "dsv4/ops/parts/experts/expert_stack.h"

#include <algorithm>

#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/experts/expert_turns.h"

namespace dsv4 {

int ExpertImages::num_turns() const {
  return turns == nullptr ? 1 : turns->count();
}

namespace {

bool same_codebook(const WeightView& a, const WeightView& b) {
  return a.codebook.data == b.codebook.data ||
         std::equal(a.codebook.as<float>(), a.codebook.as<float>() + a.codebook.numel(),
                    b.codebook.as<float>());
}

bool alike(const WeightView& a, const WeightView& b) {
  return a.format == b.format && a.bits == b.bits && a.n == b.n && a.k == b.k &&
         same_codebook(a, b);
}

const char* no_images(std::span<const ExpertWeights> experts) {
  if (experts.empty()) return "no experts";
  const ExpertWeights& first = experts.front();
  for (const WeightView* w : {&first.w1, &first.w3, &first.w2}) {
    if (w->format != WeightFormat::kKbit && w->format != WeightFormat::kMxfp4 &&
        w->format != WeightFormat::kNvfp4)
      return "weights are neither k-bit nor FP4";
    if (w->k % kKbitBlock != 0) return "columns are not groups of 32";
  }
  if (first.w1.n % 8 != 0) return "rows of gate and up are not groups of 8";
  for (const ExpertWeights& e : experts) {
    if (!alike(e.w1, first.w1) || !alike(e.w3, first.w1) || !alike(e.w2, first.w2))
      return "experts, or gate and up, differ in format, bits or codebook";
  }
  return nullptr;
}

}  // namespace

ExpertImages expert_images(std::span<const ExpertWeights> experts, const char** why) {
  const char* reason = no_images(experts);
  ExpertImages images;
  if (reason == nullptr) {
    const ExpertWeights& first = experts.front();
    images.gate_up = kbit_image(first.w1, first.w3), images.down = kbit_image(first.w2);
    if (!images.gate_up.sign_magnitude || !images.down.sign_magnitude)
      reason = "codebooks are not antisymmetric";
  }
  if (why != nullptr) *why = reason;
  if (reason != nullptr) return {};
  const auto e = std::ssize(experts);
  const auto bytes = [&](const KbitImage& image) {
    return ConstTensorView(TensorMeta::contiguous(DType::kU8, {e, image.bytes()}), nullptr);
  };
  images.gate_up_bytes = bytes(images.gate_up), images.down_bytes = bytes(images.down);
  images.gate_up_codebook = image_codebook(experts.front().w1);
  images.down_codebook = image_codebook(experts.front().w2);
  return images;
}

}  // namespace dsv4
