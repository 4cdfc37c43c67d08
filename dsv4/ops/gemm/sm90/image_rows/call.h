// Parameters of a call of image_rows.h.

#pragma once

#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/gemm/sm90/image_rows/params.h"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"
#include "dsv4/ops/gemm/x/pair_columns.cuh"

namespace dsv4::gemm::image_rows {

// Rows of x in an entry are at most 1 << entry_bits().
inline int entry_bits(const KbitImage& image) {
  return most_pairs(image.scale) / kTerms == 4 ? 2 : 1;
}

// What is common to both products: sizes, table and x. weight: any of the equal images at `places`.
// The caller sets lists or dense_rows, scales and outputs. ctas: of the grid
inline Params make_params(const WeightView& weight, const experts::ImagePlaces& places,
                          const ConstTensorView& x, int ctas) {
  const KbitImage image = image_of_format(weight);
  const KbitTable table =
      make_e4m3_table(image.is_fp4() ? image_codebook(weight) : e4m3_codebook(image.bits));
  Params p{};
  p.images = places;
  p.strips = static_cast<int>(image.num_strips());
  p.chunks = static_cast<int>(image.units_along_k());
  p.stage_strips = kItemStrips;
  p.stages = (p.strips + kItemStrips - 1) / kItemStrips;
  p.table = table;
  // The decoder gives a sixteenth of an E4M4 scale.
  p.factor = table.unit * (image.is_fp4() ? 1 : 16);
  p.x = x.as<bf16>(), p.x_stride = x.row_stride(), p.columns = static_cast<int>(image.k);
  p.rows = static_cast<int>(image.n);
  p.ctas = ctas;
  p.starts_early = true;
  p.choices.entry_bits = entry_bits(image);
  return p;
}

// A product of all rows with one matrix, of at most most_dense_rows() rows.
inline int64_t most_dense_rows(const WeightView& weight) {
  return int64_t{kOwnEntries} << entry_bits(image_of_format(weight));
}
inline Params make_dense_params(const WeightView& weight, const ConstTensorView& x,
                                const TensorView& out, int ctas) {
  Params p = make_params(weight, {.first = weight.data.data}, x, ctas);
  p.factor *= weight.scale2;
  p.dense_rows = static_cast<int>(x.dim(0));
  p.to = out.data, p.to_dtype = out.dtype, p.to_stride = out.row_stride();
  return p;
}

// And the images of up, of the sizes of those of gate.
inline Params make_gate_up_params(const WeightView& gate, const experts::ImagePlaces& gates,
                                  const experts::ImagePlaces& ups, const ConstTensorView& x,
                                  int ctas) {
  Params p = make_params(gate, gates, x, ctas);
  p.up = ups;
  p.stages = (2 * p.strips + kItemStrips - 1) / kItemStrips;
  p.strips *= 2;
  return p;
}

}  // namespace dsv4::gemm::image_rows
