#include "dsv4/server/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "dsv4/chat/sha256.h"

namespace dsv4 {
namespace {

// "'sha256-...'" of what stands between the tags.
std::string hash_of(std::string_view page, std::string_view open, std::string_view close) {
  const size_t begin = page.find(open);
  if (begin == page.npos) return "'none'";
  const size_t from = begin + open.size();
  const auto digest = sha256(page.substr(from, page.find(close, from) - from));
  unsigned char encoded[48];
  EVP_EncodeBlock(encoded, digest.data(), static_cast<int>(digest.size()));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(encoded));
}

}  // namespace

std::string page_policy(std::string_view page) {
  return fmt::format(
      "default-src 'none'; connect-src 'self'; img-src data:; script-src {}; style-src {}; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      hash_of(page, "<script>", "</script>"), hash_of(page, "<style>", "</style>"));
}

}  // namespace dsv4
