// Converts one weight from its stored format into the recipe's, piece by piece: rows are widened to
// f32, converted, compared with what a reader will decode, and passed on. Memory is a few pieces,
// whatever the weight's size; a lossless import takes memory of the weight's size.
//
// The room (convert_room.h) decides whether that happens on the host or on a GPU. The bytes are the
// same. A GPU converts to k-bit weights and FP4 only.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "dsv4/convert/convert_list.h"
#include "dsv4/convert/convert_room.h"
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
  explicit WeightConverter(std::unique_ptr<ConvertRoom> room = host_room(),
                           int64_t piece_elements = int64_t{16} << 20)
      : room_(std::move(room)), piece_elements_(piece_elements) {}

  // Whether a room of a GPU can be used for this item; one of the host takes every item.
  static bool on_gpu(const OutputItem& item);
  // Lets the calling thread use the converter.
  void enter() { room_->enter(); }

  // Requires item.converted(), and on_gpu() of a room that is not the host's. Error messages about
  // values count rows from the start of the piece and are prefixed with the weight and the piece;
  // those of a GPU say no more than that a value is refused.
  WeightError convert(const WeightView& source, const OutputItem& item, const ConvertChoice& choice,
                      const PieceSink& sink);

  // Why an MXFP4 weight cannot be imported to k-bit without loss; empty if it can. On the host.
  std::string import_obstacle(const WeightView& source);

 private:
  struct Rows {
    int64_t begin, end;
  };
  int64_t rows_per_piece(int64_t k) const;
  ConstTensorView floats(const WeightView& source, Rows rows);
  float largest(const WeightView& source);
  // Returns these rows where the room's ops read them.
  WeightView bring(const WeightView& rows);
  void add_error(const ConstTensorView& x, const WeightView& y, const ConstTensorView& importance,
                 WeightError& error);
  // The number of the first refused block, which a GPU cannot report otherwise: none yet, and after
  // the op.
  TensorView watch_values();
  void check_values(const TensorView& first_bad);
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
  static WeightError copy(const WeightView& source, const PieceSink& sink);
  TensorView scratch(Buffer* buffer, DType dtype, std::initializer_list<int64_t> shape);

  std::unique_ptr<ConvertRoom> room_;
  int64_t piece_elements_;
  Buffer x_, y_, codes_, scales_, sums_, first_bad_;  // of the room
  const std::byte* loaded_ = nullptr;                 // the source rows that x_ holds
  int64_t loaded_rows_ = 0, first_row_ = 0;           // first_row_ of the current piece
};

// Copies a tensor unchanged, in pieces.
void copy_tensor(const ConstTensorView& view, size_t tensor, const PieceSink& sink);

}  // namespace dsv4
