// Logits of a reference model in a safetensors file, for references that do not fit beside the
// model that is compared with them.
//
//   logits F32 [R, V]   of the counted tokens, in the order of for_each_piece
//   ids    I32 [T]      what was read, as given: documents begin with BOS
//   metadata            context, stride, bos, numerics
//
// F32, so that equal models differ by exactly 0: 4 V bytes a token, 505 KiB at the released
// vocabulary (20 GiB for 40,000 tokens). A file of `dsv4 eval logits` is read as well: it has no
// context, logits of every position, and stands for one window of its ids as they are.

#pragma once

#include <map>
#include <string>

#include "dsv4/loader/atomic_file.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/quality/logits_source.h"

namespace dsv4 {

// Appears complete or not at all; holds one piece in memory.
class ReferenceWriter {
 public:
  // `rows` is what add() will bring in all.
  ReferenceWriter(const std::string& path, std::span<const int32_t> ids,
                  const WindowOptions& options, int64_t rows, int64_t vocab,
                  const std::string& numerics);
  void add(const ConstTensorView& logits);  // [n, V] f32
  void finish();

 private:
  AtomicFile file_;
  int64_t rows_left_, vocab_;
  int64_t next_ = 0;  // where in the file the next row goes
};

class ReferenceFile : public LogitsSource {
 public:
  // Throws kBadInput naming the file when it does not hold what is described above.
  explicit ReferenceFile(const std::string& path);

  std::span<const int32_t> ids() const { return ids_; }
  const WindowOptions& options() const { return options_; }
  std::string numerics() const;  // empty: the file does not say

  int64_t vocab() const override { return logits_.dim(1); }
  ConstTensorView next(const Piece& piece) override;

 private:
  SafetensorsFile file_;
  ConstTensorView logits_;
  std::span<const int32_t> ids_;
  WindowOptions options_;
  int64_t row_ = 0;  // of the next piece
};

}  // namespace dsv4
