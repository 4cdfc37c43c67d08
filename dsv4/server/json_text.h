// JSON that the server writes: keys in the order of writing, compact, always valid UTF-8.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dsv4 {

using Json = nlohmann::ordered_json;

inline std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace dsv4
