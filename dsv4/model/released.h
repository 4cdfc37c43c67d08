// The released models, built in: their config.json as text (docs/spec/dsv4.md 1.1, 1.2), for plans
// and benchmarks without a checkpoint.

#pragma once

#include <string>

#include "dsv4/model/config.h"

namespace dsv4 {

// "flash" or "pro"; anything else throws kBadInput.
std::string released_config_json(const std::string& release);
// With this drafter: the first releases have MTP, the later ones DSpark (docs/spec/dsv4.md 1.3).
ModelConfig released_config(const std::string& release, DrafterKind drafter = DrafterKind::kMtp);

}  // namespace dsv4
