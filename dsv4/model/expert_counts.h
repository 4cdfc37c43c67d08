// How often the experts of a model were chosen in some traffic, as a file: what
// `--experts-counts-out` and `tools/expert_trace.py replay --counts` write, and `--experts-counts`
// reads.
//
//   {"experts": E, "layers": [[uses of each expert], ...]}
//
// Layers and experts stand in the order of their numbers; a trace of some hundred tokens is enough
// to find the popular ones. The numbers decide which experts begin in GPU memory and nothing else:
// no file changes a bit of an answer, and steps replace the experts by those that they choose.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/model/config.h"

namespace dsv4 {

// [layer] of experts: the most used first, of equal ones the lowest id. Throws kBadInput, naming
// `file`, when the text is something else or of a model with other layers or experts.
std::vector<std::vector<int32_t>> parse_expert_counts(const std::string& text,
                                                      const std::string& file,
                                                      const ModelConfig& config);

// uses: [layer] of each expert; all layers have as many
std::string expert_counts_text(const std::vector<std::vector<int64_t>>& uses);

}  // namespace dsv4
