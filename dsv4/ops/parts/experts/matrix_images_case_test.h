// Random experts as rows of files and as a kernel image of each matrix
// (WeightLayout::kMatrixImages), for the tests of implementations that read these.

#pragma once

#include <utility>
#include <vector>

#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "tests/harness/arena.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

// The images of weights of one shape and format, at equal distances.
inline std::vector<WeightView> matrix_images(Arena& arena, const std::vector<WeightView>& weights) {
  const KbitImage image = kbit_image(weights[0]);
  const TensorView bytes = arena.input(DType::kU8, {std::ssize(weights), image.bytes()});
  std::vector<WeightView> images = weights;
  for (size_t e = 0; e < weights.size(); ++e) {
    const TensorView own = bytes.slice(0, static_cast<int64_t>(e), static_cast<int64_t>(e) + 1);
    for (int64_t s = 0; s < image.num_strips(); ++s)
      pack_kbit_strip(
          image, {&weights[e], 1}, s,
          {own.as<uint8_t>() + s * image.strip_bytes(), static_cast<size_t>(image.strip_bytes())});
    images[e].data = {TensorMeta::contiguous(DType::kU8, {image.bytes()}), own.data};
    images[e].scale = {};
  }
  return images;
}

struct MatrixImagesCase {
  Arena arena;
  std::vector<ExpertWeights> file, images;
  ExpertsArgs file_args, args;  // equal but for the layout of the stack
  TensorView scale2;            // [e, 3]

  MatrixImagesCase(const ExpertsShape& s, int64_t inner, int64_t count, const StoredAs& gate_up,
                   const StoredAs& down) {
    Rng rng(static_cast<uint64_t>(s.t * 7919 + s.d + inner + gate_up.bits));
    const std::vector<WeightView> rows[] = {random_stack(arena, rng, gate_up, count, inner, s.d),
                                            random_stack(arena, rng, gate_up, count, inner, s.d),
                                            random_stack(arena, rng, down, count, s.d, inner)};
    std::vector<WeightView> packed[3];
    for (int i = 0; i < 3; ++i) packed[i] = matrix_images(arena, rows[i]);
    scale2 = arena.input(DType::kF32, {count, 3});
    for (size_t e = 0; e < rows[0].size(); ++e) {
      file.push_back({rows[0][e], rows[1][e], rows[2][e]});
      images.push_back({packed[0][e], packed[1][e], packed[2][e]});
      for (int i = 0; i < 3; ++i) scale2.row<float>(static_cast<int64_t>(e))[i] = rows[i][e].scale2;
    }
    file_args = random_experts(arena, rng, s, file);
    file_args.may_round_operands = true;
    args = file_args;
    args.stack = ExpertStack(images, WeightLayout::kMatrixImages);
  }
};

}  // namespace dsv4::test
