// The implementations of kv_insert.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4 {

void kv_insert_cpu(const Context& context, const KvInsertArgs& args);
void index_insert_cpu(const Context& context, const IndexInsertArgs& args);

void kv_insert_cuda(const Context& context, const KvInsertArgs& args);
void index_insert_cuda(const Context& context, const IndexInsertArgs& args);

}  // namespace dsv4
