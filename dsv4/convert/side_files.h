// The files beside the tensors of a converted checkpoint.

#pragma once

#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"

namespace dsv4 {

// The source's config.json with
//   "quantization_config": {"quant_method": "kbit", "block_size": 32, "scale_format": "e4m4",
//                           "recipe": TEXT, "source": the source's own quantization_config or null}
// Where all weights are floats but those of one FP4 format, it is that of compressed-tensors
// instead ("quant_method": "compressed-tensors"), which vLLM reads; the ledger has the recipe.
std::string converted_config(const std::string& source_config, const Recipe& recipe,
                             const ConvertList& list, const std::string& what);

// Copies tokenizer, generation_config, license and other small files of the top folder. Excluded
// are weights, their index, config.json, hidden files, files above 64 MiB, files that describe the
// source's formats (README.md, hf_quant_config.json, an older ledger), and links that lead to
// another name: a model hub's cache links tokenizer.json to a blob, but a link LICENSE.txt to
// /etc/shadow is no part of a model. Returns the names, sorted.
std::vector<std::string> copy_side_files(const std::string& source, const std::string& target);

}  // namespace dsv4
