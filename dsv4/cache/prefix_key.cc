#include "dsv4/cache/prefix_key.h"

#include <openssl/sha.h>

#include <algorithm>
#include <bit>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are hashed as they lie in memory");

PrefixKey cut(const Digest& digest) {
  PrefixKey key;
  std::copy_n(digest.begin(), key.bytes.size(), key.bytes.begin());
  return key;
}

// SHA-256 of two byte strings, the first of which has a fixed length.
template <class First>
Digest digest_of_both(const First& first, std::span<const std::byte> second) {
  std::vector<std::byte> joined(first.size() + second.size());
  std::copy_n(reinterpret_cast<const std::byte*>(first.data()), first.size(), joined.begin());
  std::copy(second.begin(), second.end(),
            joined.begin() + static_cast<std::ptrdiff_t>(first.size()));
  return digest_of(joined);
}

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

std::string PrefixKey::hex() const {
  return hex_digits(bytes);
}

PrefixKey salt_key(std::string_view salt) {
  return cut(digest_of(salt));
}

PrefixKey root_key(const Digest& fingerprint, const PrefixKey& salt) {
  return cut(digest_of_both(fingerprint, std::as_bytes(std::span(salt.bytes))));
}

PrefixKey next_key(const PrefixKey& parent, std::span<const int32_t> ids) {
  return cut(digest_of_both(parent.bytes, std::as_bytes(ids)));
}

PrefixChain::PrefixChain(const Digest& fingerprint, std::string_view salt, int64_t step)
    : salt_(salt_key(salt)), root_(root_key(fingerprint, salt_)), step_(step) {
}

void PrefixChain::extend(std::span<const int32_t> ids) {
  const auto step = static_cast<size_t>(step_);
  while ((keys_.size() + 1) * step <= ids.size()) {
    const std::span<const int32_t> own = ids.subspan(keys_.size() * step, step);
    keys_.push_back(next_key(keys_.empty() ? root_ : keys_.back(), own));
  }
}

}  // namespace dsv4
