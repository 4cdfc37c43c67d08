// What a recipe converts each tensor of a checkpoint into, from names, dtypes and shapes alone. The
// quantizer writes this list and the memory plan sums it, so the two cannot disagree.
//
//   f32, bf16, f16   P.weight [n, k]
//   fp8              P.weight [n, k] F8_E4M3, P.scale [ceil(n/128), ceil(k/128)] F8_E8M0
//   mxfp4            P.weight [n, k/2] U8, P.scale [n, k/32] F8_E8M0
//   nvfp4            P.weight [n, k/2] U8, P.weight_scale [n, k/16] F8_E4M3,
//                    P.weight_scale_2 [] F32
//   k-bit            P.weight [n, k/32, K] I32, P.scale [n, k/32] U8, P.codebook [2^K] F32,
//                    P.scale_2 [] F32
//
// Files have the two FP4 formats under compressed-tensors' names (file_tensor).
//
// Nothing is dropped silently: a weight whose rule cannot be applied is kept as it is, with the
// reason.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dsv4/convert/recipe.h"
#include "dsv4/formats/weight.h"

namespace dsv4 {

using StoredTensors = std::map<std::string, TensorMeta>;  // official name -> meta

struct OutputTensor {
  std::string name;
  TensorMeta meta;
};

// One weight with all of its tensors, or one other tensor. An item is written into one file.
struct OutputItem {
  std::string name;  // the prefix of a weight ("layers.0.attn.wq_a"), or a tensor's name
  bool is_weight = false;
  WeightName id;                             // part is kOther unless recipes can name the weight
  WeightFormat source = WeightFormat::kF32;  // weights only
  int source_bits = 0;                       // kKbit
  int64_t n = 0, k = 0;                      // weights only: the logical shape
  Target target;     // the conversion; kKeep copies; for kKbit the codebook is resolved
  std::string kept;  // why the recipe's rule was not applied; empty if it was
  int64_t source_bytes = 0;
  std::vector<OutputTensor> tensors;

  int64_t bytes() const;
  bool converted() const { return target.kind != Target::Kind::kKeep; }
  // MXFP4 -> k4-e2m1, value by value.
  bool lossless_import() const {
    return source == WeightFormat::kMxfp4 && target.book == Target::Book::kE2m1;
  }
  // MXFP4 -> mxfp4: the same bytes under the names of file_tensor().
  bool renamed() const {
    return source == WeightFormat::kMxfp4 && target.kind == Target::Kind::kMxfp4;
  }
  // Its scales are searched, with importance where there is one.
  bool searched() const {
    return (target.kind == Target::Kind::kKbit || is_fp4(target)) && !lossless_import() &&
           !renamed();
  }
};

// How a file stores a tensor of an item. FP4 targets have the names and shapes of
// compressed-tensors' formats mxfp4-pack-quantized and nvfp4-pack-quantized: P.weight_packed,
// P.weight_scale (of MXFP4 U8), P.weight_global_scale [1] = 1 / P.weight_scale_2.
OutputTensor file_tensor(const OutputItem& item, const OutputTensor& tensor);

struct ConvertList {
  std::vector<OutputItem> items;  // names in natural order: layers.2 before layers.10
  int64_t source_bytes = 0, bytes = 0;
  std::vector<std::string> idle;  // `where` of the rules that no weight matched
};

// `o_groups` is the config's: the groups of wo_a must be a multiple of the fp8 block size.
ConvertList convert_list(const StoredTensors& stored, const Recipe& recipe, int64_t o_groups = 1);

// `item` without conversion: the tensors of the source. For a lossless import whose scales
// turn out not to fit.
OutputItem kept_item(const StoredTensors& stored, const OutputItem& item, std::string why);

}  // namespace dsv4
