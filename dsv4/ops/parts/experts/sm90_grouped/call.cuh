// From the arguments of a call to the parameters of its kernels, without launching them.

#pragma once

#include <cmath>

#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/halves_call.h"
#include "dsv4/ops/parts/experts/sm90_grouped/lists.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/rows.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

namespace grouped = gemm::grouped;

// What the kernels multiply.
//   kScaled   weights times the scales of their blocks, in 16 bits
//   kFolded   the same in e4m3 where the weights are MXFP4, otherwise as kScaled
//   kBlocks   weights in e4m3; scales of blocks are factors of sums, as in kernels for few pairs
enum class Operands : uint8_t { kScaled, kFolded, kBlocks };

struct Call {
  Choices choices;
  Lists lists;
  RowsParams rows;
  grouped::Params products;
  TensorView y;  // [slots, d] bf16; or [t * k, d] by token and slot

  int64_t most_tiles() const { return max_tiles(lists.tiling, choices.pairs, lists.experts); }
  grouped::Params of_turn(int turn) const {
    grouped::Params p = products;
    p.class_first += turn * grouped::kClasses;
    return p;
  }
};

// In f16. h of a clamped SwiGLU is at most limit^2 * weight, and h' has to be below 65504; Q8 may
// round up by a sixteenth.
inline int hidden_exponent(float limit) {
  if (!(limit > 0)) return 0;
  return static_cast<int>(std::floor(std::log2(61000.0 / (double{limit} * limit))));
}

inline grouped::Product make_product(const KbitImage& image, const ImagePlaces& places,
                                     const Codebook& codebook, int64_t row_tiles,
                                     Operands operands) {
  const gemm::KbitTable table = operands == Operands::kBlocks
                                    ? gemm::make_e4m3_table(codebook)
                                    : gemm::make_scaled_table(codebook, image.scale);
  return {.images = places,
          .strips = static_cast<int>(image.num_strips()),
          .chunks = static_cast<int>(image.units_along_k()),
          .row_tiles = static_cast<int>(row_tiles),
          .table = table,
          .factor = gemm::scaled_factor(image.scale) * table.unit};
}

// How rows of x lie that are multiplied with these weights.
inline grouped::XForm form_of(const KbitImage& image, Operands operands) {
  if (operands == Operands::kBlocks) return grouped::XForm::kE4m3;
  if (!image.is_fp4()) return grouped::XForm::kF16;
  return operands == Operands::kFolded && image.scale == ImageScale::kUe8m0 ? grouped::XForm::kE4m3
                                                                            : grouped::XForm::kBf16;
}
inline grouped::Tiling tiling_of(Operands operands) {
  return operands == Operands::kBlocks ? grouped::kBlockTiles : grouped::kWideTiles;
}

// [slots] numbers of a call.
inline float* take_floats(int64_t slots, Scratch& scratch) {
  return scratch.take(DType::kF32, {slots}).as<float>();
}

inline Lists take_lists(const Choices& choices, int64_t experts, Operands operands,
                        Scratch& scratch, int turns = 1) {
  const grouped::Tiling tiling = tiling_of(operands);
  const auto ints = [&](int64_t n) { return scratch.take(DType::kI32, {n}).as<int32_t>(); };
  const int64_t pairs = choices.pairs, tiles = max_tiles(tiling, pairs, experts);
  const int64_t ctas = ceil_div(pairs, kListThreads);
  const TensorView records = scratch.take(DType::kU8, {tiles * static_cast<int64_t>(sizeof(Tile))});
  return {.tiling = tiling,
          .experts = static_cast<int>(experts),
          .ctas = static_cast<int>(ctas),
          .counts = ints(ctas * experts),
          .tiles = reinterpret_cast<Tile*>(records.data),
          .class_first = ints(int64_t{turns} * grouped::kClasses + 1),
          .turns = turns,
          .done = ints(tiles),
          .slot_of = ints(pairs),
          .tile_of = ints(pairs),
          .first_pair = nullptr,
          .pair_at = nullptr};
}

// Rows of x for `product`, whose x, factors and slot_bytes are set. slots: of all tiles
inline RowsParams take_rows(const ConstTensorView& x, grouped::Product& product,
                            grouped::XForm form, const Lists& lists, int64_t slots,
                            Scratch& scratch) {
  float* const factor = take_floats(slots, scratch);
  const TensorView rows = scratch.take(DType::kU8, {slots * product.slot_bytes});
  product.x = rows.data, product.factors = factor;
  return {.x = x.as<bf16>(),
          .x_stride = x.row_stride(),
          .x_is_aligned =
              x.row_stride() % kVector == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0,
          .columns = static_cast<int>(x.dim(1)),
          .chunks = product.chunks,
          .slots = 1,
          .tiles = lists.tiles,
          .slot_of = lists.slot_of,
          .tile_of = lists.tile_of,
          .first_pair = lists.first_pair,
          .form = form,
          .rows = rows.data,
          .slot_bytes = product.slot_bytes,
          .factor = factor};
}

// What rows of x of tokens have besides: the weights of the router.
inline void take_weights(RowsParams& rows, const Choices& choices, int64_t slots,
                         Scratch& scratch) {
  rows.slots = choices.slots, rows.choices = choices;
  rows.weight = take_floats(slots, scratch);
}

// What the kernel of a product needs but for the product.
inline grouped::Params products_of(const Lists& lists, const ExpertImages& images) {
  return {.tiles = lists.tiles,
          .class_first = lists.class_first,
          .done = lists.done,
          .scale2 = images.scale2.as<float>()};
}

inline float limit_of(float swiglu_limit) {
  return swiglu_limit > 0 ? swiglu_limit : HUGE_VALF;
}

inline const int32_t* exponents_of(const ExpertImages& images) {
  return images.exponents.empty() ? nullptr : images.exponents.as<int32_t>();
}

// row_tiles: of 128 rows of gate and as many of up
inline grouped::Product gate_up_of(const ExpertStack& stack, int64_t row_tiles, Operands operands) {
  const ExpertImages& images = stack.images();
  grouped::Product p = make_product(images.gate_up, images.gate_up_places(),
                                    images.gate_up_codebook, row_tiles, operands);
  p.exponents = exponents_of(images);
  p.rows = static_cast<int>(stack.inner());
  return p;
}
inline grouped::Product down_of(const ExpertStack& stack, Operands operands) {
  const ExpertImages& images = stack.images();
  grouped::Product p =
      make_product(images.down, images.down_places(), images.down_codebook,
                   ceil_div(images.down.num_strips(), grouped::kTileStrips), operands);
  p.exponents = exponents_of(images);
  p.rows = static_cast<int>(images.down.n);
  return p;
}

// Takes temporaries from `scratch`. The rows of y of a tile take the place of its rows of x', which
// nothing reads when its h' is complete.
inline Call make_call(const ExpertsArgs& args, Operands operands, Scratch& scratch) {
  const ExpertImages& images = args.stack.images();
  const int64_t d = args.x.dim(1), experts = args.stack.size();
  Call call{.choices = choices_of(args)};
  const int64_t all = max_slots(tiling_of(operands), call.choices.pairs, experts);
  call.lists = take_lists(call.choices, experts, operands, scratch, images.num_turns());
  // Gate and up have an item for each 128 columns of h', whose padding is zeros.
  grouped::Product gate_up = gate_up_of(args.stack, 2 * images.down.units_along_k(), operands);
  grouped::Product down = down_of(args.stack, operands);
  const grouped::XForm hidden_form = form_of(images.down, operands);
  const int64_t y_stride = gate_up.chunks * int64_t{gemm::kUnitColumns};
  gate_up.slot_bytes = y_stride * int64_t{sizeof(bf16)};  // of x' and then of y
  down.slot_bytes = grouped::row_bytes(hidden_form, down.chunks);
  call.rows =
      take_rows(args.x, gate_up, form_of(images.gate_up, operands), call.lists, all, scratch);
  take_weights(call.rows, call.choices, all, scratch);
  const TensorView hidden = scratch.take(DType::kU8, {all * down.slot_bytes});
  call.y = TensorView(TensorMeta::contiguous(DType::kBF16, {all, y_stride}), call.rows.rows)
               .slice(1, 0, d);
  const int exponent = hidden_exponent(args.swiglu_limit);
  call.rows.hidden_form = hidden_form, call.rows.hidden_exponent = exponent;
  call.rows.hidden_factor = take_floats(all, scratch);
  down.x = hidden.data, down.factors = call.rows.hidden_factor;
  call.products = products_of(call.lists, images);
  call.products.gate_up = gate_up, call.products.down = down;
  call.products.has_gate_up = call.products.has_down = true;
  call.products.pair_weight = call.rows.weight;
  call.products.limit = limit_of(args.swiglu_limit);
  call.products.hidden_form = hidden_form, call.products.hidden_exponent = exponent;
  call.products.hidden = hidden.data;
  call.products.y = call.y.as<bf16>(), call.products.y_stride = y_stride;
  return call;
}

// The halves (halves.h), whose rows of h are in the order of the experts.
inline Lists take_half_lists(const Choices& choices, int64_t experts, Operands operands,
                             Scratch& scratch) {
  Lists lists = take_lists(choices, experts, operands, scratch);
  lists.first_pair =
      scratch.take(DType::kI32, {max_tiles(lists.tiling, choices.pairs, experts)}).as<int32_t>();
  return lists;
}

// Gate and up; the kernel stores h where the caller wants it.
inline Call make_hidden_call(const ExpertsHiddenArgs& args, Operands operands, Scratch& scratch) {
  const ExpertImages& images = args.stack.images();
  const int64_t experts = args.stack.num_ids();
  Call call{.choices = choices_of(args.stack, args.experts, args.weights)};
  const int64_t all = max_slots(tiling_of(operands), call.choices.pairs, experts);
  call.lists = take_half_lists(call.choices, experts, operands, scratch);
  grouped::Product gate_up =
      gate_up_of(args.stack, ceil_div(images.gate_up.num_strips(), grouped::kTileStrips), operands);
  const grouped::XForm form = form_of(images.gate_up, operands);
  gate_up.slot_bytes = grouped::row_bytes(form, gate_up.chunks);
  call.rows = take_rows(args.x, gate_up, form, call.lists, all, scratch);
  call.rows.first_pair = nullptr;
  take_weights(call.rows, call.choices, all, scratch);
  call.products = products_of(call.lists, images);
  call.products.gate_up = gate_up, call.products.has_gate_up = true;
  call.products.pair_weight = call.rows.weight;
  call.products.limit = limit_of(args.swiglu_limit);
  call.products.h = args.hidden.as<bf16>(), call.products.h_stride = args.hidden.row_stride();
  call.products.h_mirrors = args.mirrors;
  call.products.first_pair = call.lists.first_pair;
  return call;
}

// Down, whose items wait for none of gate and up. In f16 the exponent of h' is that of the row's
// largest group (rows.cuh), where one launch of both products has the largest that h can be: sums
// differ only where one of the two is not exact.
inline Call make_output_call(const ExpertsOutputArgs& args, Operands operands, Scratch& scratch) {
  const ExpertImages& images = args.stack.images();
  const int64_t experts = args.stack.num_ids();
  Call call{.choices = choices_of(args.stack, args.experts, {})};
  const int64_t all = max_slots(tiling_of(operands), call.choices.pairs, experts);
  call.lists = take_half_lists(call.choices, experts, operands, scratch);
  grouped::Product down = down_of(args.stack, operands);
  const grouped::XForm form = form_of(images.down, operands);
  down.slot_bytes = grouped::row_bytes(form, down.chunks);
  call.rows = take_rows(args.hidden, down, form, call.lists, all, scratch);
  call.products = products_of(call.lists, images);
  call.products.down = down, call.products.has_down = true;
  if (args.rows.empty()) {
    const int64_t y_stride = images.down.num_strips() * gemm::kUnitRows;
    call.y = scratch.take(DType::kBF16, {all, y_stride}).slice(1, 0, args.acc.dim(1));
  } else {
    call.y = args.rows;
    call.lists.pair_at = scratch.take(DType::kI32, {all}).as<int32_t>();
    call.products.y_row = call.lists.pair_at;
  }
  call.products.y = call.y.as<bf16>(), call.products.y_stride = call.y.row_stride();
  return call;
}

}  // namespace dsv4::experts_kernel::sm90_grouped
