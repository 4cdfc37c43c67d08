// Random experts in both layouts, for the tests of implementations that read kernel images.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

struct ImagesShape {
  int64_t t, k, e, d, inner;
  int64_t only = -1;  // the expert of all pairs; -1: random ones
  // MXFP4: exponents of a weight span so many numbers, and some blocks are zeros; 0: as in files of
  // random_weight().
  int exponents = 0;
};

// Random exponents for an MXFP4 weight, and blocks of zeros with any exponent.
inline void spread_exponents(const WeightView& w, Rng& rng, int exponents) {
  constexpr int64_t kBytes = kMxfp4Group / 2;
  auto* codes = const_cast<uint8_t*>(w.data.as<uint8_t>());
  auto* scale = const_cast<uint8_t*>(w.scale.as<uint8_t>());
  const auto least = 110 + static_cast<int>(rng.below(8));
  for (int64_t block = 0; block < w.n * w.k / kMxfp4Group; ++block) {
    const bool zeros = rng.below(16) == 0;
    if (zeros) std::fill_n(codes + block * kBytes, kBytes, static_cast<uint8_t>(rng.below(2) * 8));
    scale[block] = static_cast<uint8_t>(
        zeros ? static_cast<int>(rng.below(255))
              : least + static_cast<int>(rng.below(static_cast<uint64_t>(exponents))));
  }
}

// The largest exponent of the blocks of an MXFP4 weight that are not zeros; else 0.
inline int32_t largest_exponent(const WeightView& w) {
  constexpr int64_t kBytes = kMxfp4Group / 2;
  int32_t largest = 0;
  if (w.format != WeightFormat::kMxfp4) return largest;
  for (int64_t block = 0; block < w.n * w.k / kMxfp4Group; ++block) {
    const auto* codes = w.data.as<uint8_t>() + block * kBytes;
    if (std::any_of(codes, codes + kBytes, [](uint8_t two) { return (two & 0x77) != 0; }))
      largest = std::max<int32_t>(largest, w.scale.as<uint8_t>()[block]);
  }
  return largest;
}

// Rounds values to three significant bits: times a scale of five bits they are bf16 numbers, and
// implementations that round weights are exact.
inline void coarsen(const ConstTensorView& codebook) {
  auto* values = const_cast<float*>(codebook.as<float>());
  for (int64_t i = 0; i < codebook.numel(); ++i) {
    int exponent = 0;
    const float mantissa = std::frexp(values[i], &exponent);
    values[i] = std::ldexp(std::round(mantissa * 8) / 8, exponent);
  }
}

// The images of `file`, packed by the CPU.
inline ExpertImages pack_images(Arena& arena, const std::vector<ExpertWeights>& file) {
  ExpertImages images = expert_images(file);
  const auto e = std::ssize(file);
  const TensorView scale2 = arena.input(DType::kF32, {e, 3});
  const TensorView exponents = arena.input(DType::kI32, {e, 3});
  const TensorView up = arena.input(DType::kU8, {e, images.gate_up.bytes()});
  const TensorView down = arena.input(DType::kU8, {e, images.down.bytes()});
  const auto pack = [](const KbitImage& image, std::span<const WeightView> weights, uint8_t* to) {
    const int64_t bytes = image.strip_bytes();
    for (int64_t s = 0; s < image.num_strips(); ++s)
      pack_kbit_strip(image, weights, s, {to + s * bytes, static_cast<size_t>(bytes)});
  };
  for (int64_t i = 0; i < e; ++i) {
    const ExpertWeights& expert = file[static_cast<size_t>(i)];
    const WeightView both[] = {expert.w1, expert.w3};
    pack(images.gate_up, both, up.row<uint8_t>(i));
    pack(images.down, {&expert.w2, 1}, down.row<uint8_t>(i));
    float* factors = scale2.row<float>(i);
    factors[0] = expert.w1.scale2, factors[1] = expert.w3.scale2, factors[2] = expert.w2.scale2;
    auto* largest = exponents.row<int32_t>(i);
    largest[0] = largest_exponent(expert.w1), largest[1] = largest_exponent(expert.w3);
    largest[2] = largest_exponent(expert.w2);
  }
  images.gate_up_bytes = up, images.down_bytes = down, images.scale2 = scale2;
  if (may_fold(images)) images.exponents = exponents;
  return images;
}

// Copies the images of each expert to an allocation of its own, these in random order. The views of
// all bytes lose their memory.
inline ExpertImages scattered(Arena& arena, const ExpertImages& images) {
  const int64_t e = images.gate_up_bytes.dim(0);
  const int64_t up = images.gate_up.bytes(), down = images.down.bytes();
  std::vector<int64_t> order(static_cast<size_t>(e));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(static_cast<uint64_t>(e + up));
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  const TensorView places = arena.input(DType::kI64, {e});
  arena.keep_order(places);
  for (const int64_t i : order) {
    const TensorView own = arena.input(DType::kU8, {up + down});
    std::copy_n(images.gate_up_bytes.row<uint8_t>(i), up, own.as<uint8_t>());
    std::copy_n(images.down_bytes.row<uint8_t>(i), down, own.as<uint8_t>() + up);
    places.as<int64_t>()[i] = reinterpret_cast<int64_t>(own.data);
  }
  ExpertImages scattered = images;
  scattered.gate_up_bytes.data = nullptr, scattered.down_bytes.data = nullptr;
  scattered.places = places;
  return scattered;
}

// What a kernel that brings experts to their places writes.
inline std::vector<ConstTensorView> placed(const ExpertImages& images) {
  if (!images.has_places()) return {};
  std::vector<ConstTensorView> views{images.places};
  const int64_t bytes = images.gate_up.bytes() + images.down.bytes();
  for (int64_t i = 0; i < images.places.dim(0); ++i)
    views.emplace_back(TensorMeta::contiguous(DType::kU8, {bytes}),
                       reinterpret_cast<const std::byte*>(images.places.as<int64_t>()[i]));
  return views;
}

// What an image is made of: k-bit planes, from a number of bits, or FP4.
struct ImageSource : StoredAs {
  ImageSource(int k_bits) : StoredAs{WeightFormat::kKbit, k_bits} {}
  ImageSource(WeightFormat fp4) : StoredAs{fp4} {}
};

// Random experts that have images, exact in all implementations. up: of gate and up
inline std::vector<ExpertWeights> experts_with_images(Arena& arena, Rng& rng, int64_t e, int64_t d,
                                                      int64_t inner, const ImageSource& up,
                                                      const ImageSource& down) {
  const auto stack = [&](const ImageSource& stored, int64_t n, int64_t k) {
    const auto weights = random_stack(arena, rng, stored, e, n, k);
    if (stored.format != WeightFormat::kKbit) return weights;
    const Codebook antisymmetric =
        rng.below(2) == 0 ? nf_codebook(stored.bits) : bnf_codebook(stored.bits);
    auto* values = const_cast<float*>(weights[0].codebook.as<float>());
    std::copy(antisymmetric.values().begin(), antisymmetric.values().end(), values);
    coarsen(weights[0].codebook);
    return weights;
  };
  const auto w1 = stack(up, inner, d);
  auto w3 = stack(up, inner, d);
  const auto w2 = stack(down, d, inner);
  std::vector<ExpertWeights> file;
  for (size_t i = 0; i < w1.size(); ++i) {
    w3[i].codebook = w1[i].codebook;
    file.push_back({.w1 = w1[i], .w3 = w3[i], .w2 = w2[i]});
  }
  return file;
}

struct ImagesCase {
  Arena arena;
  std::vector<ExpertWeights> file;
  ExpertsArgs file_args, args;  // equal but for the layout of the stack

  // up: of gate and up
  ImagesCase(const ImagesShape& s, const ImageSource& up, const ImageSource& down) {
    Rng rng(static_cast<uint64_t>(s.t * 7919 + s.d + s.inner + up.bits));
    file = experts_with_images(arena, rng, s.e, s.d, s.inner, up, down);
    for (const ExpertWeights& expert : file)
      for (const WeightView* w : {&expert.w1, &expert.w3, &expert.w2})
        if (s.exponents > 0 && w->format == WeightFormat::kMxfp4)
          spread_exponents(*w, rng, s.exponents);
    file_args = random_experts(arena, rng, {.t = s.t, .k = s.k, .d = s.d, .only = s.only}, file);
    args = file_args;
    args.stack = pack_images(arena, file);
  }
};

// What ranks have of a case: rows of w1 and w3 up to inner_ends[r], and of w2 up to ends[r], of
// which those of rank r are the last.
struct RankImages {
  std::vector<ExpertImages> stacks;

  RankImages(ImagesCase& c, const std::vector<int64_t>& inner_ends,
             const std::vector<int64_t>& ends) {
    for (size_t r = 0; r < ends.size(); ++r) {
      std::vector<ExpertWeights> own;
      for (const ExpertWeights& e : c.file)
        own.push_back({e.w1.rows(begin(inner_ends, r), inner_ends[r]),
                       e.w3.rows(begin(inner_ends, r), inner_ends[r]),
                       e.w2.rows(begin(ends, r), ends[r])});
      stacks.push_back(pack_images(c.arena, own));
    }
  }

  // The columns of `all` that stand for the rows of rank r.
  static TensorView columns(const Buffer& all, const std::vector<int64_t>& ends, size_t r) {
    return all.view().slice(1, begin(ends, r), ends[r]);
  }

 private:
  static int64_t begin(const std::vector<int64_t>& ends, size_t r) {
    return r == 0 ? 0 : ends[r - 1];
  }
};

// What a rank has of a case that has whole experts: those up to ends[r], of which its own are the
// last. run(stack, hidden, rows) computes its rows of y; they are exchanged in `all` [t * k, d].
template <class RunRank>
void run_whole_experts(ImagesCase& c, const std::vector<int64_t>& ends, const TensorView& all,
                       const RunRank& run) {
  const ConstTensorView& ids = c.args.experts;
  const int64_t pairs = all.dim(0), k = ids.dim(1);
  int64_t begin = 0;
  for (size_t r = 0; r < ends.size(); begin = ends[r++]) {
    const std::vector<ExpertWeights> own(c.file.begin() + begin, c.file.begin() + ends[r]);
    const ExpertStack stack =
        ExpertStack(pack_images(c.arena, own)).part_of(std::ssize(c.file), begin);
    const Buffer hidden(DType::kBF16, {pairs, c.args.stack.inner()});
    const Buffer rows(DType::kBF16, {pairs, all.dim(1)});
    for (const Buffer* unwritten : {&hidden, &rows})  // NaN
      std::fill_n(unwritten->as<uint16_t>(), unwritten->view().numel(), uint16_t{0xffff});
    run(r, stack, hidden.view(), rows.view());
    for (int64_t i = 0; i < pairs; ++i)
      if (stack.has_id(ids.row<int32_t>(i / k)[i % k]))
        std::copy_n(rows.as<uint16_t>() + i * all.dim(1), all.dim(1),
                    all.as<uint16_t>() + i * all.dim(1));
  }
}

// acc [t, d] f32 = the rows [t * k, d] BF16 of each token, added in ascending order of their ids,
// as experts_sum does: an emulated test does not link the ops.
inline void sum_rows(const ConstTensorView& rows, const ConstTensorView& ids,
                     const TensorView& acc) {
  const int64_t k = ids.dim(1), d = rows.dim(1);
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    std::vector<int64_t> slots(static_cast<size_t>(k));
    std::iota(slots.begin(), slots.end(), 0);
    std::stable_sort(slots.begin(), slots.end(), [&](int64_t a, int64_t b) {
      return ids.row<int32_t>(t)[a] < ids.row<int32_t>(t)[b];
    });
    float* const sums = acc.row<float>(t);
    std::fill_n(sums, d, 0.f);
    for (const int64_t slot : slots)
      for (int64_t c = 0; c < d; ++c)
        sums[c] += std::bit_cast<float>(uint32_t{rows.row<uint16_t>(t * k + slot)[c]} << 16);
  }
}

// The id of every second choice becomes that of no expert, as damaged weights may have it.
inline void break_choices(const ImagesCase& c) {
  const auto e = static_cast<int32_t>(c.file.size());
  const int32_t none[] = {e, -1, INT32_MAX, INT32_MIN};
  const ConstTensorView& ids = c.args.experts;
  for (int64_t i = 0; i < ids.numel(); i += 2)
    const_cast<int32_t*>(ids.row<int32_t>(i / ids.dim(1)))[i % ids.dim(1)] = none[i / 2 % 4];
}
// What kernels take these for: expert 0 with weight 0.
inline void mend_choices(const ImagesCase& c) {
  const ConstTensorView &ids = c.args.experts, &weights = c.args.weights;
  for (int64_t i = 0; i < ids.numel(); i += 2) {
    const_cast<int32_t*>(ids.row<int32_t>(i / ids.dim(1)))[i % ids.dim(1)] = 0;
    const_cast<float*>(weights.row<float>(i / ids.dim(1)))[i % ids.dim(1)] = 0;
  }
}

}  // namespace dsv4::test
