// Parameters and launches of the kernels of image_rows.h.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/gemm/epilogue/gated_step.h"
#include "dsv4/ops/gemm/sm90/experts/params.h"
#include "dsv4/tensor/dtype.h"

namespace dsv4::gemm::image_rows {

inline constexpr int kTerms = 2;          // columns of the products that a row of x takes
inline constexpr int kMaxImages = 512;    // of a stack, where a kernel lists the pairs
inline constexpr int kMaxColumns = 8192;  // of x
inline constexpr int kOwnEntries = 32;    // that a CTA lists for itself
inline constexpr int kItemStrips = 4;     // of images: of one, or first of gate, then of up
inline constexpr int kPairStrips = kItemStrips / 2;
inline constexpr int kFewColumns = 4096;  // of x, for which the ring has more stages

// In the base, `images` are those of gate, or of the only product. With gate and up, `strips`
// counts the strips of both, and h is stored to `out`. scale2 may be null.
struct Params : experts::Params {
  experts::ImagePlaces up;  // gate and up
  GatedStep gated;          // gate and up; its limit is not 0

  // One product: out[m, n], of any float type.
  void* to;
  int64_t to_stride;
  DType to_dtype;

  int dense_rows;  // not 0: one matrix and so many rows of x, without lists and choices
};

void launch_list(Device& device, const experts::Choices& choices, const experts::PairLists& lists);
void launch_gate_up(Device& device, const WeightView& gate, const Params& params);
void launch_rows(Device& device, const WeightView& weight, const Params& params);

// The kernels, each in one of the files that image_rows_instance.cu becomes.
template <int K, ImageScale kScale, bool kGateUp, int kColumns>
void launch_product(Device& device, const Params& params);

}  // namespace dsv4::gemm::image_rows
