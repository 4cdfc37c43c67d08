// quantize: a checkpoint folder into a low-bit one, by a recipe, with bounded memory.
//
//   source folder, any naming and stored formats      OUT: config.json with quantization_config,
//   recipe, imatrix, options                    ->    safetensors, tokenizer and other small files,
//                                                     quantization_ledger.json
//
// Shard by shard, one weight at a time, in pieces, with all cores inside a piece. The bytes depend
// on source, recipe and options only. An interrupt loses the shard at hand: the same call goes on
// (work_folder.h); OUT appears at the end, whole. A library: it prints nothing.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dsv4/convert/ledger.h"
#include "dsv4/convert/recipe.h"
#include "dsv4/ops/kbit/quantize_kbit.h"

namespace dsv4 {

struct QuantizeOptions {
  std::string source, out;  // folders
  Recipe recipe;
  std::string imatrix;  // a file (imatrix.h), or empty
  ScaleChoice scales = ScaleChoice::kSearched;
  int64_t shard_bytes = int64_t{4} << 30;
  bool restart = false;  // throw away what an earlier call began
};

struct QuantizeProgress {
  int64_t bytes = 0, total_bytes = 0;      // of the source, dealt with
  int64_t tensors = 0, total_tensors = 0;  // of the output
  int64_t weights = 0;                     // values converted by this call
  int64_t fresh_bytes = 0;                 // of `bytes`, by this call
};

struct QuantizeResult {
  Ledger ledger;
  int64_t source_bytes = 0, bytes = 0;  // of tensors
  int64_t shards = 0, resumed_shards = 0;
  int64_t largest_tensor = 0;  // bytes, source or output
  int64_t imatrix_used = 0, imatrix_missing = 0;
  std::vector<std::string> imatrix_unknown;  // names that stand for no weight
  std::vector<std::string> idle_rules;       // rules that nothing followed
};

// Every error is one line and leaves what is finished in OUT.partial. `progress` is called after
// every piece; it may throw, which ends the call like any error.
QuantizeResult quantize(const QuantizeOptions& options,
                        const std::function<void(const QuantizeProgress&)>& progress);

}  // namespace dsv4
