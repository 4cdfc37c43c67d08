// CUDA rows of sparse_mla.h.

#pragma once

#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

const char* sparse_mla_cuda_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_cuda(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_sm90_bf16_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_bf16(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_mma_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_mma(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
