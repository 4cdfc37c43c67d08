#include "dsv4/chat/sha256.h"

#include <openssl/evp.h>

#include "dsv4/base/error.h"

namespace dsv4 {

std::array<uint8_t, 32> sha256(std::string_view bytes) {
  std::array<uint8_t, 32> digest{};
  unsigned size = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  if (ok != 1 || size != digest.size()) fail(ErrorCode::kResource, "no SHA-256 in libcrypto");
  return digest;
}

}  // namespace dsv4
