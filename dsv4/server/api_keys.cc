#include "dsv4/server/api_keys.h"

#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dsv4/base/error.h"
#include "dsv4/chat/sha256.h"
#include "dsv4/server/http.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxName = 64, kMinKey = 8;

std::optional<std::array<uint8_t, 32>> read_hex(std::string_view text) {
  std::array<uint8_t, 32> out{};
  if (text.size() != 2 * out.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return std::nullopt;
    out[i / 2] = static_cast<uint8_t>(out[i / 2] * 16 + digit);
  }
  return out;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t colon = line.find(':');
    fields.push_back(line.substr(0, colon));
    if (colon == line.npos) return fields;
    line.remove_prefix(colon + 1);
  }
}

ApiKey read_key(std::string_view line, const std::string& where) {
  std::vector<std::string_view> fields = split(line);
  ApiKey key{.name = std::string(fields[0])};
  if (fields.size() > 2 && fields.back() == "admin") {
    key.admin = true;
    fields.pop_back();
  }
  if (key.name.empty() || key.name.size() > kMaxName)
    fail(ErrorCode::kBadInput, "{}: want name:key[:admin] with a name of 1 to {} bytes", where,
         kMaxName);
  if (fields.size() == 3 && fields[1] == "sha256") {
    const auto digest = read_hex(fields[2]);
    if (!digest) fail(ErrorCode::kBadInput, "{}: want 64 hexadecimal digits", where);
    key.digest = *digest;
    return key;
  }
  if (fields.size() != 2)
    fail(ErrorCode::kBadInput, "{}: want name:key[:admin] or name:sha256:HEX[:admin]", where);
  if (fields[1].size() < kMinKey)
    fail(ErrorCode::kBadInput, "{}: the key has fewer than {} bytes", where, kMinKey);
  key.digest = sha256(fields[1]);
  return key;
}

}  // namespace

ApiKeys ApiKeys::parse(std::string_view text, const std::string& what) {
  ApiKeys keys;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty() || line[0] == '#') continue;
    keys.keys_.push_back(read_key(line, fmt::format("{}:{}", what, number)));
  }
  return keys;
}

void ApiKeys::add(std::string name, std::string_view key) {
  if (key.size() < kMinKey)
    fail(ErrorCode::kBadInput, "the API key has fewer than {} bytes", kMinKey);
  keys_.push_back({.name = std::move(name), .digest = sha256(key)});
}

const ApiKey* ApiKeys::find(std::string_view presented) const {
  const auto digest = sha256(presented);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (CRYPTO_memcmp(digest.data(), key.digest.data(), digest.size()) == 0) found = &key;
  }
  return found;
}

std::string open_to_others(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  const bool written = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0,
             read = (info.st_mode & S_IROTH) != 0;
  const bool foreign = info.st_uid != geteuid() && info.st_uid != 0;
  if (!written && !read && !foreign) return "";
  return fmt::format("{} (mode {:04o}): chmod 600 it",
                     foreign   ? "it belongs to another user"
                     : written ? "other users may write it"
                               : "every user may read it",
                     info.st_mode & 07777);
}

std::string_view presented_key(std::string_view authorization, std::string_view x_api_key) {
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() > kBearer.size() &&
      lower_case(authorization.substr(0, kBearer.size())) == kBearer)
    return authorization.substr(kBearer.size());
  return x_api_key;
}

}  // namespace dsv4
