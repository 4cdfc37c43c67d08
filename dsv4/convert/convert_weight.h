// Converts one weight from its stored format into the recipe's, piece by piece: rows are widened to
// f32, converted, compared with what a reader will decode, and passed on. Memory is a few pieces,
// whatever the weight's size; a lossless import takes memory of the weight's size.

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

// Receives the bytes of the output. Both functions are called from one thread.
struct PieceSink {
  // Bytes of item.tensors[tensor] from `offset` on.
  std::function<void(size_t tensor, int64_t offset, std::span<const std::byte> bytes)> write;
  // Reports that about this many further bytes of the source were processed.
  std::function<void(int64_t bytes)> consumed;
};

struct ConvertChoice {
  ScaleChoice scales = ScaleChoice::kSearched;
  Codebook codebook;             // for k-bit targets
  ConstTensorView importance{};  // [k] f32 or empty
};

class WeightConverter {
 public:
  // Number of values per piece; small pieces are for tests.
  explicit WeightConverter(int64_t piece_elements = int64_t{16} << 20)
      : piece_elements_(piece_elements) {}

  // Requires item.converted(). Error messages about values count rows from the start of the piece
  // and are prefixed with the weight and the piece.
  WeightError convert(const WeightView& source, const OutputItem& item, const ConvertChoice& choice,
                      const PieceSink& sink);

  // Why an MXFP4 weight cannot be imported to k-bit without loss; empty if it can.
  std::string import_obstacle(const WeightView& source);

 private:
  struct Rows {
    int64_t begin, end;
  };
  int64_t rows_per_piece(int64_t k) const;
  ConstTensorView floats(const WeightView& source, Rows rows);
  float largest(const WeightView& source);
  // Rows x [n, k] f32 in the target's format; the views are valid until the next piece.
  WeightView kbit(const OutputItem& item, const ConstTensorView& x, const ConvertChoice& choice,
                  float tensor_scale);
  WeightView fp4(const OutputItem& item, const ConstTensorView& x, const ConvertChoice& choice,
                 float tensor_scale);
  WeightView fp8(const ConstTensorView& x);
  WeightView bf16(const ConstTensorView& x);
  WeightError quantize(const WeightView& source, const OutputItem& item,
                       const ConvertChoice& choice, const PieceSink& sink);
  WeightError import(const WeightView& source, const OutputItem& item, const PieceSink& sink);
  static TensorView scratch(Buffer* buffer, DType dtype, std::initializer_list<int64_t> shape);

  int64_t piece_elements_;
  Buffer x_, y_, codes_, scales_;
  const std::byte* loaded_ = nullptr;        // the source rows that x_ holds
  int64_t loaded_rows_ = 0, first_row_ = 0;  // first_row_ of the current piece
};

// Copies a tensor unchanged, in pieces.
void copy_tensor(const ConstTensorView& view, size_t tensor, const PieceSink& sink);

}  // namespace dsv4
