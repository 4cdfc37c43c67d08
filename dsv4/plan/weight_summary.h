// Tensors added up: by part of the model, by weight format, by stored dtype. Of a checkpoint as it
// is or, with a recipe, as it will be; `dsv4 plan` and `dsv4 inspect` print it.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"
#include "dsv4/model/model.h"
#include "dsv4/model/tensor_list.h"

namespace dsv4 {

struct Amount {
  int64_t tensors = 0, bytes = 0;
  int64_t values = 0;  // weights, whatever a byte holds of them; scales and codebooks do not count
  double bits_per_value() const {
    return values > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(values) : 0;
  }
};

// Weights by K and codebook, "k3-bnf": kernels differ by codebook, so a speed belongs to both.
using CodebookCounts = std::map<std::string, int64_t>;

// Parts are those of recipes (convert/weight_name.h) with the small tensors that belong to them,
// further "hc" and "norms"; all drafter tensors (mtp.*) are "mtp". Formats are "bf16", "fp8",
// "mxfp4", "k3" .. for the matrices that recipes can name and "other" for vectors and tables.
struct WeightSummary {
  Amount total;
  std::map<std::string, Amount> parts, formats, dtypes;
  CodebookCounts codebooks;       // of the weights that the recipe converts
  std::vector<std::string> idle;  // rules of the recipe that no weight followed
  int64_t kept = 0;               // weights that could not become what the recipe asked for
  std::string kept_example;       // "NAME: why"
};

WeightSummary summarize(const ConvertList& list);

// From the values in the model's checkpoint; "k3-own" where they are those of no named codebook.
CodebookCounts codebooks_of(const Model& model);
// "k3-bnf (33024 weights), k5-e4m3 (344 weights)"; empty without k-bit weights.
std::string to_text(const CodebookCounts& codebooks);

StoredTensors stored_tensors(const std::vector<NamedTensor>& list);
// Leaves what the engine loads today.
void drop_drafter(StoredTensors& tensors);

}  // namespace dsv4
