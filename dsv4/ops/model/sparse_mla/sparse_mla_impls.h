// The implementations of sparse_mla.h, for its table (sparse_mla.cc). One folder each: cpu/, cuda/,
// cuda_mma/, sm90_bf16/, sm90_fp8/. X_reject returns null if X can run, else the reason. Calls with
// an inverse RoPE reach sm90_fp8, which rotates what it stores, or sparse_mla_parts, which makes
// two calls of each.

#pragma once

#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4 {

void sparse_mla_parts(const Context& context, const SparseMlaArgs& args);

void sparse_mla_cpu(const Context& context, const SparseMlaArgs& args);
HostBytes sparse_mla_cpu_bytes(const SparseMlaArgs& args);

const char* sparse_mla_cuda_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_cuda(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_cuda_mma_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_cuda_mma(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_sm90_bf16_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_bf16(const Context& context, const SparseMlaArgs& args);

// Packed FP8 entries on Hopper. The invariant one splits every query the same way in any batch.
const char* sparse_mla_sm90_fp8_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_fp8(const Context& context, const SparseMlaArgs& args);

const char* sparse_mla_sm90_fp8_invariant_reject(const Context& context, const SparseMlaArgs& args);
void sparse_mla_sm90_fp8_invariant(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
