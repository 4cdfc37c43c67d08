// Importance of the columns of weights, as calibration measures it (mean squares of a linear's
// inputs): a safetensors file with one F32 [k] per weight prefix, "layers.0.ffn.experts.3.w1".
// The scale search of quantize_kbit weighs its errors with it.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {

// What an imatrix lacks for a list, and has beyond it. Throws kBadInput for a vector that belongs
// to a k-bit target of the list and has another dtype or length than its weight, or a value that is
// negative or not finite. `what` names the file.
struct ImatrixUse {
  int64_t used = 0, missing = 0;
  std::vector<std::string> unknown;  // names that stand for no weight of the checkpoint
};
ImatrixUse check_imatrix(const std::map<std::string, ConstTensorView>& imatrix,
                         const ConvertList& list, const std::string& what);

}  // namespace dsv4
