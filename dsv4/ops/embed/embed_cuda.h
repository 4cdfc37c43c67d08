// CUDA row of embed.h.

#pragma once

#include "dsv4/ops/embed/embed.h"

namespace dsv4 {

void embed_cuda(const Context& context, const EmbedArgs& args);

}  // namespace dsv4
