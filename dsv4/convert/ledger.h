// quantization_ledger.json of a converted checkpoint: the format and the error of every weight, and
// the results of evaluations of the whole model. Holds no date and no machine name, so the same
// command writes the same bytes.
//
//   {"version": 1, "tool": "dsv4 0.1.0",
//    "source": {"name": FOLDER, "tensors": N, "bytes": B}, "output": {"tensors": N, "bytes": B},
//    "options": {"recipe": TEXT, "scales": "search", "imatrix": FILE or null, ...},
//    "totals": {PART: {"weights", "elements", "bytes", "bits", "exact", "mean_sqnr_db"}},
//    "exceptions": [{"name": WEIGHT, "why": TEXT}],
//    "weights": [[PREFIX, FORMAT, ELEMENTS, BYTES, SQNR_DB or null]],
//    "evals": [anything]}
//
// bits: stored bits per weight, scales and codebooks included. sqnr_db is null where nothing was
// lost: kept weights and lossless imports.

#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

inline constexpr const char* kLedgerFile = "quantization_ledger.json";

struct LedgerWeight {
  std::string name, format;  // "layers.0.attn.wq_a"; "k3-bnf", or the source's format when kept
  int64_t elements = 0, bytes = 0;
  std::optional<double> sqnr_db;

  double bits() const {
    return elements == 0 ? 0 : 8. * static_cast<double>(bytes) / static_cast<double>(elements);
  }
};

struct LedgerTotal {
  int64_t weights = 0, elements = 0, bytes = 0;
  int64_t exact = 0;                   // weights without loss
  std::optional<double> mean_sqnr_db;  // over the other weights

  double bits() const {
    return elements == 0 ? 0 : 8. * static_cast<double>(bytes) / static_cast<double>(elements);
  }
};

struct LedgerException {
  std::string name, why;
};

struct Ledger {
  std::string tool;
  nlohmann::json source, output, options;  // objects
  std::vector<LedgerWeight> weights;
  std::vector<LedgerException> exceptions;
  nlohmann::json evals = nlohmann::json::array();

  // Keyed by part of the model (weight_name.h).
  std::map<std::string, LedgerTotal> totals() const;
};

std::string to_text(const Ledger& ledger);
// `what` names the text in errors (kBadInput).
Ledger parse_ledger(std::string_view text, const std::string& what);

// The ledger of a model folder; nullopt when it has none.
std::optional<Ledger> read_ledger(const std::string& folder);
// Throws what append_eval() would throw, except for a disk that fills up meanwhile: for callers
// that compute for long before they append.
void check_ledger_can_be_extended(const std::string& folder);
// Appends to "evals" and replaces the file atomically. kBadInput when the folder has no ledger.
void append_eval(const std::string& folder, const nlohmann::json& eval);

nlohmann::json to_json(const LedgerWeight& weight);
LedgerWeight ledger_weight(const nlohmann::json& row);  // throws a std::exception

}  // namespace dsv4
