// Importance of the columns of weights, as measured by calibration (mean squares of a linear
// layer's inputs): a safetensors file with one F32 [k] per weight prefix,
// "layers.0.ffn.experts.3.w1". The scale search of quantize_kbit weights its errors with it.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {

// Compares an imatrix with a list. Throws kBadInput for a vector of a k-bit or FP4 target whose
// dtype or length does not match its weight, or that holds a value that is negative or not finite.
// `what` names the file.
struct ImatrixUse {
  int64_t used = 0, missing = 0;
  std::vector<std::string> unknown;  // names that match no weight of the checkpoint
};
ImatrixUse check_imatrix(const std::map<std::string, ConstTensorView>& imatrix,
                         const ConvertList& list, const std::string& what);

}  // namespace dsv4
