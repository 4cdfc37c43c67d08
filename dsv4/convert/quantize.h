// quantize: converts a checkpoint folder into a low-bit one, by a recipe, with bounded memory.
//
//   source folder, any naming and stored formats      OUT: config.json with quantization_config,
//   recipe, imatrix, options                    ->    safetensors, tokenizer and other small files,
//                                                     quantization_ledger.json
//
// Shard by shard, one weight at a time, in pieces, with all cores working on a piece; with a GPU
// several weights at a time (weight_workers.h). The bytes depend on source, recipe and options,
// but not on the device. While a shard is written, those before it are flushed to the disk. An
// interrupt loses only these: repeating the call continues (work_folder.h). OUT appears at the end,
// complete. As a library it prints nothing.

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
  bool restart = false;            // discard the work of an earlier call
  const Device* device = nullptr;  // a GPU that converts to k-bit weights and FP4; null: none
  int workers = 0;                 // weights at a time; 0: WeightWorkers::default_number()
};

struct QuantizeProgress {
  int64_t bytes = 0, total_bytes = 0;      // of the source, processed
  int64_t tensors = 0, total_tensors = 0;  // of the output
  int64_t weights = 0;                     // values converted by this call
  int64_t processed_bytes = 0;             // the share of `bytes` processed by this call
};

struct QuantizeResult {
  Ledger ledger;
  int64_t source_bytes = 0, bytes = 0;  // of all tensors
  int64_t shards = 0, resumed_shards = 0;
  int64_t largest_tensor = 0;  // bytes, source or output
  int64_t imatrix_used = 0, imatrix_missing = 0;
  std::vector<std::string> imatrix_unknown;  // names that match no weight
  std::vector<std::string> unused_rules;     // rules that no weight matched
  std::vector<std::string> side_files;       // copied beside the weights
};

// An imatrix or a recipe that matches no weight at all is an error, because it is for another
// model. Every error is one line and leaves finished shards in OUT.partial. `progress` is called
// after every piece, by one thread at a time; it may throw, which ends the call like any error.
QuantizeResult quantize(const QuantizeOptions& options,
                        const std::function<void(const QuantizeProgress&)>& progress);

}  // namespace dsv4
