#include "dsv4/server/logprobs.h"

#include <fmt/format.h>

#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

Json token_json(const TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {
      {"token", token_text(token.bytes)}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string token_text(const std::string& bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string out;
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

Json logprob_json(const TokenLogprob& token) {
  Json json = token_json(token), top = Json::array();
  for (const TokenLogprob& one : token.top) top.push_back(token_json(one));
  json["top_logprobs"] = std::move(top);
  return json;
}

}  // namespace dsv4
