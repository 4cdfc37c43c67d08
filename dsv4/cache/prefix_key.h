// Names of prefixes of texts: a chain of hashes over steps of token ids (docs/spec/serving.md
// 5.3).
//
//   root  = SHA-256(fingerprint, SHA-256(salt))     what computes the text, and who may share it
//   key_i = SHA-256(key_{i-1}, ids of step i as 32-bit little-endian numbers)
//
// cut to 128 bits. A key therefore names the whole text up to the end of its step, and it is the
// name of a file that outlives the program.

#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

using Digest = std::array<uint8_t, 32>;  // of SHA-256

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

struct PrefixKey {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const PrefixKey&) const = default;
  std::string hex() const;  // 32 digits
};

// Equal for equal salts, and says nothing of the salt to a reader of the file.
PrefixKey salt_key(std::string_view salt);
PrefixKey root_key(const Digest& fingerprint, const PrefixKey& salt);
PrefixKey next_key(const PrefixKey& parent, std::span<const int32_t> ids);

// The keys of a growing text, one for each full step.
class PrefixChain {
 public:
  PrefixChain() = default;
  PrefixChain(const Digest& fingerprint, std::string_view salt, int64_t step);

  // Adds the keys of the steps of `ids` that are new. `ids` begins with those of the calls before.
  void extend(std::span<const int32_t> ids);
  const PrefixKey& salt() const { return salt_; }
  // [full steps] key i names the first i + 1 steps
  std::span<const PrefixKey> keys() const { return keys_; }

 private:
  PrefixKey salt_, root_;
  int64_t step_ = 1;
  std::vector<PrefixKey> keys_;
};

}  // namespace dsv4
