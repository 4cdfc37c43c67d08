// Logits of a reference model in a safetensors file, for references that do not fit in memory
// together with the model under test.
//
//   logits F32 [R, V]   one row per counted token, in the order of for_each_piece
//   ids    I32 [T]      the input as given: documents begin with BOS
//   metadata            context, stride, bos, numerics
//
// F32, so that equal models differ by exactly 0: 4 V bytes per token, 505 KiB with the released
// vocabulary (20 GiB for 40,000 tokens). A file written by `dsv4 eval logits` is accepted as well:
// it has no context, has logits of every position, and counts as one window of its ids as given.

#pragma once

#include <map>
#include <string>

#include "dsv4/base/atomic_file.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/quality/logits_source.h"

namespace dsv4 {

// Appears complete or not at all; holds one piece in memory.
class ReferenceWriter {
 public:
  // `rows` is the total that add() will receive.
  ReferenceWriter(const std::string& path, std::span<const int32_t> ids,
                  const WindowOptions& options, int64_t rows, int64_t vocab,
                  const std::string& numerics);
  void add(const ConstTensorView& logits);  // [n, V] f32
  void finish();

 private:
  AtomicFile file_;
  int64_t rows_left_, vocab_;
  int64_t next_ = 0;  // file offset of the next row
};

class ReferenceFile : public LogitsSource {
 public:
  // Throws kBadInput naming the file when its contents are not as described above.
  explicit ReferenceFile(const std::string& path);

  std::span<const int32_t> ids() const { return ids_; }
  const WindowOptions& options() const { return options_; }
  std::string numerics() const;  // empty: not in the file

  int64_t vocab() const override { return logits_.dim(1); }
  ConstTensorView next(const Piece& piece) override;

 private:
  SafetensorsFile file_;
  ConstTensorView logits_;
  std::span<const int32_t> ids_;
  WindowOptions options_;
  int64_t row_ = 0;  // first row of the next piece
};

}  // namespace dsv4
