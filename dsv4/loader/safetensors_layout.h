// The layout of a safetensors file, computed before any data exists: the header text and one offset
// per tensor. Tensors are laid out by decreasing item size, which keeps each aligned for its dtype
// without holes.

#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct SafetensorsLayout {
  std::string header;           // the first bytes of the file: length and JSON, a multiple of 8
  std::vector<int64_t> offset;  // of each tensor in the file, in the order given
  int64_t file_bytes = 0;
};

// Throws kInvalidArgument for a duplicate or invalid name, or a header that is too large.
SafetensorsLayout layout_safetensors(std::span<const std::pair<std::string, TensorMeta>> tensors,
                                     const std::map<std::string, std::string>& metadata = {});

}  // namespace dsv4
