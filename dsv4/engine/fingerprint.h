// What the bytes of a cache depend on. Two programs whose fingerprints are equal may read each
// other's units (cache/unit_file.h).

#pragma once

#include <string>

#include "dsv4/cache/prefix_key.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/model.h"

namespace dsv4 {

struct RankIdentity;  // comm/rank_processes.h

// The files of a model: the text of config.json, and of each safetensors file its header (names,
// dtypes, shapes, offsets), size and time of change. The time stands for the numbers, which are not
// read: the weights of a fine-tuned model differ in nothing else. A copy of a folder therefore is
// another model, unless the times are copied too.
std::string model_identity(const std::string& folder);

// Digest of everything that decides the bits: the model, the numerics, the layout, the
// implementations of this build and the processor that runs them.
Digest cache_fingerprint(const std::string& identity, const Model& model, const Context& context,
                         const CachePlan& plan);

// What ranks that are processes compare: what the model is, such as model_identity(), what each has
// of the experts, and where they compute. device: null: on the host
RankIdentity rank_identity(const std::string& program, const std::string& model,
                           const Device* device, ExpertsPlacement placement, DrafterKind drafter);

}  // namespace dsv4
