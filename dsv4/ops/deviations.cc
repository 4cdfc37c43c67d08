#include "dsv4/ops/inspect.h"

namespace dsv4 {
namespace {

constexpr std::string_view kFinerP = "P rounded to f16, not bf16, against a maximum updated late";
constexpr std::string_view kRunningMax = "P rounded against the running maximum, not the row's";
constexpr std::string_view kRoundedWeights = "weights of more than 8 significant bits -> bf16";
constexpr std::string_view kRoundedToX = "k-bit weights -> the type of x, bf16 or f16";
constexpr std::string_view kF16Codebook = "codebook values -> f16";
constexpr std::string_view kF16Weights = "k-bit weights with their scales -> f16";
constexpr std::string_view kShortSums = "FP8 tensor cores add 128 products with about 14 bits";

constexpr std::string_view kShortBlocks = "FP8 tensor cores add 32 products with about 14 bits";

constexpr Deviation kDeviations[] = {
    {"sparse_mla", "sm90_fp8", kFinerP},          {"sparse_mla", "sm90_fp8_invariant", kFinerP},
    {"sparse_mla", "sm90_bf16", kRunningMax},     {"sparse_mla", "cuda_mma", kRunningMax},
    {"linear", "sm90_few", kShortSums},           {"attention_out", "sm90_few", kShortSums},
    {"attention_in", "sm90_few", kShortSums},     {"moe", "sm90_few", kShortSums},
    {"moe", "sm90_fused", kShortBlocks},          {"linear", "cublaslt_fp8", kShortSums},
    {"experts", "cublaslt_fp8", kShortSums},      {"experts", "sm90_few_e4m3", kShortBlocks},
    {"experts", "sm90_wide", kShortBlocks},       {"experts", "sm90_many_e4m3", kShortBlocks},
    {"experts", "sm90_few", kF16Codebook},        {"experts", "sm90_grouped", kF16Weights},
    {"linear", "cuda_mma", kRoundedWeights},      {"experts", "cuda_mma", kRoundedWeights},
    {"experts", "sm90_grouped_e4m3", kShortSums}, {"expert_linear", "cuda_mma", kRoundedToX},
    {"linear", "cublaslt_any", kRoundedToX},      {"linear", "cuda_kbit", kRoundedToX},
    {"linear", "sm90_kbit_wide", kRoundedToX},    {"linear", "sm90_many", kShortSums},
};

}  // namespace

std::span<const Deviation> official_deviations() {
  return kDeviations;
}

std::string_view official_deviation(std::string_view op, std::string_view impl) {
  for (const Deviation& deviation : kDeviations)
    if (deviation.op == op && deviation.impl == impl) return deviation.what;
  return {};
}

}  // namespace dsv4
