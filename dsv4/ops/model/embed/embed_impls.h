// The implementations of embed.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/model/embed/embed.h"

namespace dsv4 {

void embed_cpu(const Context& context, const EmbedArgs& args);

void embed_cuda(const Context& context, const EmbedArgs& args);

}  // namespace dsv4
