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
int64_t sparse_mla_mma_workspace(const Context& context, const SparseMlaArgs& args);

// Packed rows on Hopper. The invariant one cuts every query the same way in any batch.
const char* sparse_mla_sm90_fp8_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_fp8(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_sm90_fp8_invariant_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_fp8_invariant(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
