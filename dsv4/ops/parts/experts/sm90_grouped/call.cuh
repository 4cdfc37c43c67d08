// From the arguments of a call to the parameters of its kernels, without launching them.

#pragma once

#include <cmath>

#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/image_call.h"
#include "dsv4/ops/parts/experts/sm90_grouped/lists.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/rows.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

namespace grouped = gemm::grouped;

struct Call {
  Choices choices;
  Lists lists;
  RowsParams rows;
  grouped::Params products;
  TensorView y;  // [slots, d] bf16
};

// In f16. h of a clamped SwiGLU is at most limit^2 * weight, and h' has to be below 65504; Q8 may
// round up by a sixteenth.
inline int hidden_exponent(float limit) {
  if (!(limit > 0)) return 0;
  return static_cast<int>(std::floor(std::log2(61000.0 / (double{limit} * limit))));
}

inline grouped::Product make_product(const KbitImage& image, const ImagePlaces& places,
                                     const Codebook& codebook, int64_t row_tiles) {
  const gemm::KbitTable table = gemm::make_scaled_table(codebook, image.scale);
  return {.images = places,
          .strips = static_cast<int>(image.num_strips()),
          .chunks = static_cast<int>(image.units_along_k()),
          .row_tiles = static_cast<int>(row_tiles),
          .table = table,
          .factor = gemm::scaled_factor(image.scale) * table.unit};
}

// The operands of a product with these weights; folded: in e4m3 where the weights allow it.
inline grouped::XForm form_of(const KbitImage& image, bool folded) {
  if (!image.is_fp4()) return grouped::XForm::kF16;
  return folded && image.scale == ImageScale::kUe8m0 ? grouped::XForm::kE4m3
                                                     : grouped::XForm::kBf16;
}

// Takes temporaries from `scratch`. The rows of y of a tile take the place of its rows of x', which
// nothing reads when its h' is complete.
inline Call make_call(const ExpertsArgs& args, bool folded, Scratch& scratch) {
  const ExpertImages& images = args.stack.images();
  const int64_t t = args.x.dim(0), d = args.x.dim(1), k = slots(args), pairs = t * k;
  const int64_t experts = args.stack.size(), all = max_slots(pairs, experts);
  const int64_t ctas = ceil_div(pairs, kListThreads);
  const auto ints = [&](int64_t n) { return scratch.take(DType::kI32, {n}).as<int32_t>(); };
  const auto floats = [&](int64_t n) { return scratch.take(DType::kF32, {n}).as<float>(); };
  const auto bytes = [&](int64_t n) { return scratch.take(DType::kU8, {n}); };
  Call call{.choices = choices_of(args)};
  call.lists = {.experts = static_cast<int>(experts),
                .ctas = static_cast<int>(ctas),
                .counts = ints(ctas * experts),
                .tiles = reinterpret_cast<Tile*>(
                    bytes(max_tiles(pairs, experts) * static_cast<int64_t>(sizeof(Tile))).data),
                .class_ends = ints(grouped::kClasses),
                .done = ints(max_tiles(pairs, experts)),
                .slot_of = ints(pairs),
                .tile_of = ints(pairs)};
  // Gate and up have an item for each 128 columns of h', whose padding is zeros.
  const int64_t down_chunks = images.down.units_along_k();
  grouped::Product gate_up = make_product(images.gate_up, images.gate_up_places(),
                                          images.gate_up_codebook, 2 * down_chunks);
  grouped::Product down = make_product(images.down, images.down_places(), images.down_codebook,
                                       ceil_div(images.down.num_strips(), grouped::kTileStrips));
  const grouped::XForm form = form_of(images.gate_up, folded),
                       hidden_form = form_of(images.down, folded);
  const int64_t y_stride = gate_up.chunks * int64_t{gemm::kUnitColumns};
  gate_up.slot_bytes = y_stride * int64_t{sizeof(bf16)};  // of x' and then of y
  down.slot_bytes = grouped::row_bytes(hidden_form, down.chunks);
  const TensorView rows = bytes(all * gate_up.slot_bytes);
  const TensorView hidden = bytes(all * down.slot_bytes);
  call.y =
      TensorView(TensorMeta::contiguous(DType::kBF16, {all, y_stride}), rows.data).slice(1, 0, d);
  float *const factor = floats(all), *const hidden_factor = floats(all),
               *const weight = floats(all);
  const int exponent = hidden_exponent(args.swiglu_limit);
  call.rows = {.x = args.x.as<bf16>(),
               .x_stride = args.x.row_stride(),
               .x_is_aligned = args.x.row_stride() % kVector == 0 &&
                               reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0,
               .choices = call.choices,
               .columns = static_cast<int>(d),
               .chunks = gate_up.chunks,
               .slots = static_cast<int>(k),
               .tiles = call.lists.tiles,
               .slot_of = call.lists.slot_of,
               .tile_of = call.lists.tile_of,
               .form = form,
               .hidden_form = hidden_form,
               .hidden_exponent = exponent,
               .rows = rows.data,
               .slot_bytes = gate_up.slot_bytes,
               .factor = factor,
               .hidden_factor = hidden_factor,
               .weight = weight};
  const auto* const exponents = images.exponents.empty() ? nullptr : images.exponents.as<int32_t>();
  gate_up.exponents = down.exponents = exponents;
  gate_up.x = rows.data, gate_up.factors = factor;
  gate_up.rows = static_cast<int>(args.stack.inner());
  down.x = hidden.data, down.factors = hidden_factor;
  down.rows = static_cast<int>(d);
  call.products = {.gate_up = gate_up,
                   .down = down,
                   .has_gate_up = true,
                   .has_down = true,
                   .tiles = call.lists.tiles,
                   .class_ends = call.lists.class_ends,
                   .done = call.lists.done,
                   .scale2 = images.scale2.as<float>(),
                   .pair_weight = weight,
                   .limit = args.swiglu_limit > 0 ? args.swiglu_limit : HUGE_VALF,
                   .hidden_form = hidden_form,
                   .hidden_exponent = exponent,
                   .hidden = hidden.data,
                   .y = call.y.as<bf16>(),
                   .y_stride = y_stride};
  return call;
}

}  // namespace dsv4::experts_kernel::sm90_grouped
