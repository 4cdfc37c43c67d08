// One weight from its stored format into the recipe's, piece by piece: rows are widened to f32,
// converted, compared with what a reader will see, and handed on. Memory is a few pieces, whatever
// the weight's size; a lossless import takes the size of the weight.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "dsv4/convert/convert_list.h"
#include "dsv4/convert/weight_error.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

// Takes the bytes of the output. Both functions are called from one thread.
struct PieceSink {
  // Bytes of item.tensors[tensor] from `offset` on.
  std::function<void(size_t tensor, int64_t offset, std::span<const std::byte> bytes)> write;
  // About so many bytes of the source have been dealt with.
  std::function<void(int64_t bytes)> consumed;
};

struct ConvertChoice {
  ScaleChoice scales = ScaleChoice::kSearched;
  Codebook codebook;             // of a k-bit target
  ConstTensorView importance{};  // [k] f32 or empty
};

class WeightConverter {
 public:
  // Values of a piece; small ones are for tests.
  explicit WeightConverter(int64_t piece_elements = int64_t{16} << 20)
      : piece_elements_(piece_elements) {}

  // `item` is converted(). Errors about values count rows from the start of the piece; weight and
  // piece are named in front.
  WeightError convert(const WeightView& source, const OutputItem& item, const ConvertChoice& choice,
                      const PieceSink& sink);

  // Why an MXFP4 weight has no lossless k-bit image; empty: it has one.
  std::string misfit(const WeightView& source);

 private:
  struct Rows {
    int64_t begin, end;
  };
  int64_t rows_per_piece(int64_t k) const;
  ConstTensorView floats(const WeightView& source, Rows rows);
  float tensor_scale(const WeightView& source);
  // Rows x [n, k] f32 in the target's format; the views hold until the next piece.
  WeightView kbit(const OutputItem& item, const ConstTensorView& x, const ConvertChoice& choice,
                  float tensor_scale);
  WeightView fp8(const ConstTensorView& x);
  WeightView bf16(const ConstTensorView& x);
  WeightError quantise(const WeightView& source, const OutputItem& item,
                       const ConvertChoice& choice, const PieceSink& sink);
  WeightError import(const WeightView& source, const OutputItem& item, const PieceSink& sink);
  static TensorView scratch(Buffer* buffer, DType dtype, std::initializer_list<int64_t> shape);

  int64_t piece_elements_;
  Buffer x_, y_, codes_, scales_;
  const std::byte* loaded_ = nullptr;        // the source rows that lie in x_
  int64_t loaded_rows_ = 0, first_row_ = 0;  // first_row_ of the piece at hand
};

// A tensor as it is, in pieces.
void copy_tensor(const ConstTensorView& view, size_t tensor, const PieceSink& sink);

}  // namespace dsv4
