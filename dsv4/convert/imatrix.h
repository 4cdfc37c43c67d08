// Importance of the columns of weights, as measured by calibration (mean squares of a linear
// layer's inputs): a safetensors file with one F32 [k] per weight prefix,
// "layers.0.ffn.experts.3.w1", as `dsv4 eval imatrix` writes it, or a file of llama.cpp
// (llama_imatrix.h). The scale search of quantize_kbit weights its errors with it.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/base/mapped_file.h"
#include "dsv4/convert/convert_list.h"
#include "dsv4/convert/llama_imatrix.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

// An imatrix file, whichever program wrote it: GGUF by its first bytes, the legacy form by the
// extension .dat, safetensors otherwise.
class Imatrix {
 public:
  // list: whose weights the names of llama.cpp are mapped to
  Imatrix(const std::string& path, const ConvertList& list);

  // By the name of the weight; names of llama.cpp that are none of the list are as in the file.
  const std::map<std::string, ConstTensorView>& vectors() const { return vectors_; }
  void release_pages() const;

 private:
  std::optional<SafetensorsFile> file_;
  std::vector<Buffer> values_;
  std::map<std::string, ConstTensorView> vectors_;
};

// The vectors of a file of llama.cpp for the weights of a list. A weight that has several matrices
// there, as wo_a for its groups, gets their mean over all tokens; experts that no token chose get
// none. Throws kBadInput naming `what` where the number of values does not fit.
std::map<std::string, std::vector<float>> map_llama_imatrix(const LlamaImatrix& file,
                                                            const ConvertList& list,
                                                            const std::string& what);

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
