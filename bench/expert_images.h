// Random kernel images of experts for benchmarks; every byte is a moderate number, as in
// weight_pool.h. Exponents of MXFP4 span eight numbers, which e4m3 operands hold.

#pragma once

#include <algorithm>

#include "bench/op_bench.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/ops/parts/experts/expert_stack.h"

namespace dsv4::bench {

// Moderate numbers of every kind of image but MXFP4.
inline void fill_moderate(const TensorView& bytes) {
  auto* words = reinterpret_cast<uint64_t*>(bytes.data);
#pragma omp parallel for
  for (int64_t i = 0; i < bytes.bytes() / 8; ++i)
    words[i] =
        (random_bits(2, static_cast<uint64_t>(i)) & 0x8787878787878787u) | 0x3838383838383838u;
}

struct RandomImages {
  static constexpr uint64_t kExponents = 0x7070707070707070u;  // of eight blocks, the least
  Tensor gate_up, down, scale2, exponents;
  ExpertImages images;

  // scale: of FP4, whose codebook is that of image_codebook()
  RandomImages(int64_t experts, int64_t inner, int64_t d, Codebook book,
               ImageScale scale = ImageScale::kE4M4) {
    const KbitImage up_image{2 * inner, d, book.bits, true, scale},
        down_image{d, inner, book.bits, true, scale};
    gate_up = Tensor(DType::kU8, {experts, up_image.bytes()});
    down = Tensor(DType::kU8, {experts, down_image.bytes()});
    scale2 = Tensor(DType::kF32, {experts, 3});
    const int64_t unit = up_image.unit_bytes(), codes = unit - up_image.scale_bytes();
    for (const Tensor* bytes : {&gate_up, &down}) {
      auto* words = reinterpret_cast<uint64_t*>(bytes->view().data);
#pragma omp parallel for
      for (int64_t i = 0; i < bytes->view().bytes() / 8; ++i) {
        const uint64_t random = random_bits(2, static_cast<uint64_t>(i));
        words[i] = scale == ImageScale::kUe8m0 && i * 8 % unit >= codes
                       ? (random & 0x0707070707070707u) | kExponents
                       : (random & 0x8787878787878787u) | 0x3838383838383838u;
      }
    }
    std::fill_n(scale2.as<float>(), experts * 3, 0.01f);
    images = {.gate_up = up_image,
              .down = down_image,
              .gate_up_codebook = book,
              .down_codebook = book,
              .gate_up_bytes = gate_up,
              .down_bytes = down,
              .scale2 = scale2};
    if (!may_fold(images)) return;
    exponents = Tensor(DType::kI32, {experts, 3});
    std::fill_n(exponents.as<int32_t>(), experts * 3, 0x77);
    images.exponents = exponents;
  }
};

}  // namespace dsv4::bench
