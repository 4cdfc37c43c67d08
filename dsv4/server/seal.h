// Text that clients keep and send back without reading it: reasoning sealed with AES-256-GCM under
// a key that lives as long as the server.

#pragma once

#include <optional>
#include <string>

namespace dsv4 {

inline constexpr size_t kSealKeyBytes = 32;

std::string random_bytes(size_t count);
std::string sealed(const std::string& key, const std::string& text);  // base64
// Nothing where it was not sealed with this key.
std::optional<std::string> unsealed(const std::string& key, const std::string& text);

}  // namespace dsv4
