#include "apps/generation.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"

namespace dsv4::apps {
namespace {

double number(const nlohmann::json& root, const std::string& file, const char* key, double low,
              double high, double fallback) {
  const auto it = root.find(key);
  if (it == root.end() || it->is_null()) return fallback;
  const double value = it->is_number() ? it->get<double>() : low - 1;
  if (!(value >= low && value <= high)) {
    fail(ErrorCode::kBadInput, "{}: {} must be a number between {} and {}", file, key, low, high);
  }
  return value;
}

double whole_number(const nlohmann::json& root, const std::string& file, const char* key,
                    double low, double high, double fallback) {
  const double value = number(root, file, key, low, high, fallback);
  if (value != std::floor(value))
    fail(ErrorCode::kBadInput, "{}: {} must be a whole number", file, key);
  return value;
}

bool boolean(const nlohmann::json& root, const std::string& file, const char* key, bool fallback) {
  const auto it = root.find(key);
  if (it == root.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) fail(ErrorCode::kBadInput, "{}: {} must be true or false", file, key);
  return it->get<bool>();
}

}  // namespace

SamplingParams load_sampling_defaults(const std::string& folder) {
  const std::string file = folder + "/generation_config.json";
  SamplingParams params;
  if (!is_present(file)) return params;
  const auto root = nlohmann::json::parse(read_text_file(file, size_t{1} << 20), nullptr,
                                          /*allow_exceptions=*/false);
  if (!root.is_object()) fail(ErrorCode::kBadInput, "{}: not a JSON object", file);
  params.temperature = static_cast<float>(number(root, file, "temperature", 0, 100, 1));
  params.top_p = static_cast<float>(number(root, file, "top_p", 1e-6, 1, 1));
  params.top_k = static_cast<int>(whole_number(root, file, "top_k", 0, 1 << 24, 0));
  params.min_p = static_cast<float>(number(root, file, "min_p", 0, 1, 0));
  params.repetition_penalty =
      static_cast<float>(number(root, file, "repetition_penalty", 1e-6, 100, 1));
  if (!boolean(root, file, "do_sample", true)) params.temperature = 0;
  return params;
}

}  // namespace dsv4::apps
