#include "dsv4/server/seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <memory>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr size_t kNonce = 12, kTag = 16;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* cipher) const { EVP_CIPHER_CTX_free(cipher); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

unsigned char* bytes(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}
const unsigned char* bytes(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void check(int ok) {
  if (ok != 1) fail(ErrorCode::kResource, "libcrypto: AES-256-GCM failed");
}

std::string base64(const std::string& raw) {
  std::string encoded(4 * ((raw.size() + 2) / 3) + 1, '\0');  // and the zero that OpenSSL appends
  EVP_EncodeBlock(bytes(encoded), bytes(raw), static_cast<int>(raw.size()));
  encoded.pop_back();
  return encoded;
}

}  // namespace

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  if (RAND_bytes(bytes(out), static_cast<int>(count)) != 1)
    fail(ErrorCode::kResource, "libcrypto has no random numbers");
  return out;
}

std::string sealed(const std::string& key, const std::string& text) {
  const Cipher cipher(EVP_CIPHER_CTX_new());
  const std::string nonce = random_bytes(kNonce);
  std::string out(kNonce + text.size() + kTag, '\0');
  nonce.copy(out.data(), kNonce);
  int size = 0;
  check(EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes(key), bytes(nonce)));
  check(EVP_EncryptUpdate(cipher.get(), bytes(out) + kNonce, &size, bytes(text),
                          static_cast<int>(text.size())));
  check(EVP_EncryptFinal_ex(cipher.get(), bytes(out) + kNonce + size, &size));
  check(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTag,
                            bytes(out) + kNonce + text.size()));
  return base64(out);
}

std::optional<std::string> unsealed(const std::string& key, const std::string& text) {
  if (text.size() % 4 != 0 || text.empty()) return std::nullopt;
  std::string raw(text.size() / 4 * 3, '\0');
  if (EVP_DecodeBlock(bytes(raw), bytes(text), static_cast<int>(text.size())) < 0)
    return std::nullopt;
  for (size_t i = text.size(); i > text.size() - 2 && text[i - 1] == '='; --i) raw.pop_back();
  // The bits after the last byte have no say in `raw`, but they have been changed, too.
  if (raw.size() < kNonce + kTag || base64(raw) != text) return std::nullopt;
  const size_t length = raw.size() - kNonce - kTag;
  std::string out(length, '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new());
  int size = 0;
  check(EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes(key), bytes(raw)));
  check(EVP_DecryptUpdate(cipher.get(), bytes(out), &size, bytes(raw) + kNonce,
                          static_cast<int>(length)));
  check(
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTag, bytes(raw) + kNonce + length));
  unsigned char last[16];
  if (EVP_DecryptFinal_ex(cipher.get(), last, &size) != 1) return std::nullopt;
  return out;
}

}  // namespace dsv4
