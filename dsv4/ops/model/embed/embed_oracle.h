// fp64 oracle of embed.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/embed/embed.h"

namespace dsv4 {

std::vector<double> embed_oracle(const EmbedArgs& args);  // [t, m, d]

}  // namespace dsv4
