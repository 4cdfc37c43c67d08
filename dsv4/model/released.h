// The released models, built in: their config.json as text (docs/spec/dsv4.md 1.1, 1.2), for plans
// and benchmarks without a checkpoint.

#pragma once

#include <string>

#include "dsv4/model/config.h"

namespace dsv4 {

// "flash" or "pro"; anything else throws kBadInput.
std::string released_config_json(const std::string& release);
ModelConfig released_config(const std::string& release);

}  // namespace dsv4
