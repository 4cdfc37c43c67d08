// API keys: who may use the server (docs/spec/serving.md 7.3).
//
//   name:key[:admin]            or  name:sha256:HEX[:admin], one a line; # begins a comment
//
// Only digests are kept. Comparison takes the same time whatever was presented.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

struct ApiKey {
  std::string name;
  std::array<uint8_t, 32> digest{};  // SHA-256 of the key
  bool admin = false;
};

class ApiKeys {
 public:
  // Throws kBadInput, "WHAT:LINE: ..." (without the key).
  static ApiKeys parse(std::string_view text, const std::string& what);
  // One key, from the environment.
  void add(std::string name, std::string_view key);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  const ApiKey* find(std::string_view presented) const;

 private:
  std::vector<ApiKey> keys_;
};

// What other users may do with a file of keys, as a warning; empty: nothing.
std::string open_to_others(const std::string& path);

// The key of `Authorization: Bearer KEY` or `x-api-key: KEY`; empty where there is none.
std::string_view presented_key(std::string_view authorization, std::string_view x_api_key);

}  // namespace dsv4
