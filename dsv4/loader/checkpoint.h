// A checkpoint folder as one table of tensors with official names (docs/spec/dsv4.md section 10).
//
// Files are read in this order of preference: the shards of model.safetensors.index.json,
// model.safetensors, or the only other *.safetensors. A tensor keeps the dtype it is stored in, and
// the stored dtype decides the format of a weight. Data stays in the mapped files: opening reads
// headers only; check_finite() reads values. Every problem is one kBadInput or kIo error that
// names the tensor and the file.
//
// The index says which file holds a tensor. A tensor that the index does not list is still part of
// the checkpoint (other engines read it as well), but two tensors with one official name are an
// error.
//
// Not thread safe: the table records which names have been requested.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/formats/weight.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {

struct StoredTensor {
  ConstTensorView view;
  std::string_view file;  // path; lives as long as the checkpoint
  bool half = false;      // one of the two halves of a stacked gate_up_proj (names.h)
};

class Checkpoint {
 public:
  static Checkpoint open(const std::string& folder);
  // Tensors without a file, for synthetic models: they read as zero and take no
  // memory where `fill` does not write. `what` replaces the folder name in errors.
  using Fill = std::function<void(const std::string& name, const TensorView& tensor)>;
  static Checkpoint blank(const std::string& what, const std::map<std::string, TensorMeta>& tensors,
                          const Fill& fill);
  // Tensors that have shapes and addresses, but no memory: for plans. has_data() is false.
  static Checkpoint shapes(const std::string& what,
                           const std::map<std::string, TensorMeta>& tensors);

  // Tensors of files whose headers alone are there (parse_safetensors_header), such as those of a
  // hub. index: the text of model.safetensors.index.json, or empty. has_data() is false.
  struct FileHeader {
    std::string name;   // in the folder
    std::string begin;  // of the file, with its header
    int64_t bytes = 0;  // of the file
  };
  static Checkpoint headers(const std::string& what, const std::string& index,
                            const std::vector<FileHeader>& files);

  bool has_data() const { return has_data_; }
  const std::string& folder() const { return folder_; }
  std::string config_path() const { return folder_ + "/config.json"; }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // Names that begin with `from` begin with `to` instead, unless there is such a name already.
  void rename_prefix(const std::string& from, const std::string& to);

  // Throws kBadInput: "layers.0.attn.attn_sink is missing from FOLDER",
  // "layers.0.attn.attn_sink: want [64] F32, got [32] F32 (FILE)".
  ConstTensorView tensor(const std::string& name, std::initializer_list<DType> dtypes,
                         std::initializer_list<int64_t> shape) const;

  // The weight [n, k] at prefix + ".weight" in the format that its dtype implies
  // (formats/weight.h):
  //
  //   F32, BF16, F16   plain
  //   F8_E4M3          kFp8Block with .scale F8_E8M0 or F32
  //   I8, U8           kNvfp4 where .weight_scale exists, with .weight_scale_2 F32 scalar;
  //                    otherwise kMxfp4 with .scale F8_E8M0. compressed-tensors' names are read
  //                    too: .weight_packed, .weight_scale U8 of MXFP4, .weight_global_scale, whose
  //                    inverse is .weight_scale_2
  //   I32              kKbit: planes [n, k/32, K], with .scale U8 [n, k/32], .codebook F32 [2^K]
  //                    and, where present, .scale_2 F32 scalar
  //
  // U8 scales of FP8 and MXFP4 are read as F8_E8M0, a dtype that older writers lack.
  // .input_scale is not used.
  WeightView weight(const std::string& prefix, int64_t n, int64_t k) const;

  // Throws kBadInput "layers.2.ffn.gate.bias: value 5 is nan (FILE): the file is damaged" when the
  // tensor of this name holds NaN or infinity. Reads all of it. Tensors without a file (blank())
  // are not checked.
  void check_finite(const std::string& name) const;
  // Checks only these rows of the tensor, and reads only them.
  void check_finite(const std::string& name, const ConstTensorView& rows) const;
  // The text of that error; empty when every value is a number.
  std::string damage(const std::string& name) const;
  std::string damage(const std::string& name, const ConstTensorView& rows) const;

  // Names that were requested from neither tensor() nor weight(), sorted.
  std::vector<std::string> unused() const;

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  // The file and offset of a view's bytes, for callers that read files instead of mappings. Null
  // when no file holds them (a misaligned tensor was copied, or the pointer is from elsewhere).
  struct FilePlace {
    std::string_view path;
    int64_t offset = 0;
  };
  std::optional<FilePlace> place(const std::byte* data) const;

  // For callers that read a checkpoint once from end to end: pages read so far are dropped from the
  // memory of this process and are read again when needed.
  void release_pages() const;

 private:
  Checkpoint() = default;
  using WeightMap = std::map<std::string, std::string>;
  using Tensors = std::map<std::string, ConstTensorView>;
  void add_file(const std::string& path, const WeightMap& weight_map);
  // path: lives as long as the checkpoint
  void add_tensors(std::string_view path, const Tensors& tensors, const WeightMap& weight_map);
  void add_shards(const std::string& index_path);
  const StoredTensor& find(const std::string& name) const;
  const StoredTensor& find(const std::string& name, std::initializer_list<DType> dtypes,
                           std::initializer_list<int64_t> shape) const;
  ConstTensorView e8m0_scale(const std::string& name, std::initializer_list<DType> dtypes,
                             std::initializer_list<int64_t> shape) const;
  float scalar(const std::string& name) const;
  bool is_e8m0_scale(const std::string& name) const;
  WeightView fp8_weight(const std::string& prefix, WeightView weight) const;
  WeightView fp4_weight(const std::string& prefix, WeightView weight) const;
  WeightView kbit_weight(const std::string& prefix, WeightView weight) const;

  std::string folder_;
  bool has_data_ = true;
  std::optional<ZeroPages> blank_;
  std::deque<SafetensorsFile> files_;  // a deque: views and paths point into it
  std::deque<std::string> paths_;      // of files without data
  std::map<std::string, StoredTensor> tensors_;
  mutable std::set<std::string> requested_;
};

}  // namespace dsv4
