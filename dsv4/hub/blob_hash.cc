#include "dsv4/hub/blob_hash.h"

#include <openssl/evp.h>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void require(bool good) {
  if (!good) fail(ErrorCode::kResource, "libcrypto cannot hash");
}

}  // namespace

void BlobHash::Free::operator()(EVP_MD_CTX* context) const {
  EVP_MD_CTX_free(context);
}

BlobHash::BlobHash(const HubFile& file) : context_(EVP_MD_CTX_new()) {
  require(context_ != nullptr &&
          EVP_DigestInit_ex(context_.get(), file.lfs ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (file.lfs) return;
  const std::string head = fmt::format("blob {}", file.size);
  update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its NUL
}

void BlobHash::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string BlobHash::digits() {
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context_.get(), sum, &size) == 1);
  return hex_digits({sum, size});
}

}  // namespace dsv4
