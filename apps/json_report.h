// Parts of JSON reports that several commands share.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "dsv4/plan/weight_summary.h"

namespace dsv4::apps {

// {NAME: {"tensors", "bytes", "weights", "bits_per_weight"}}
inline nlohmann::ordered_json amounts_json(const std::map<std::string, Amount>& table) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, amount] : table) {
    json[name] = {{"tensors", amount.tensors},
                  {"bytes", amount.bytes},
                  {"weights", amount.values},
                  {"bits_per_weight", amount.bits_per_value()}};
  }
  return json;
}

// Dumps to one line. File and tensor names may hold any bytes, JSON must be valid UTF-8.
inline std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace dsv4::apps
