// How the files of the chat page are served: by name, compressed where the client takes gzip, with
// an entity tag, and under a policy that runs no script and loads nothing but these files.

#include "dsv4/server/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/zlib/inflate_stream.hpp>
#include <cstring>
#include <map>

#include "dsv4/base/error.h"
#include "dsv4/chat/sha256.h"

namespace dsv4 {
namespace {

// Scripts, styles and fonts come from this server only, none of them inline; text becomes elements
// through DOMPurify's policy only, where the browser knows trusted types.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify";

// `gzip -n` writes a head of 10 bytes, the deflate stream, and a tail of its checksum and its size.
constexpr size_t kGzipHead = 10;

// Whether the header Accept-Encoding names gzip with a quality other than 0.
bool takes_gzip(std::string_view accepted) {
  std::string header = lower_case(accepted);
  std::erase_if(header, [](char c) { return c == ' ' || c == '\t'; });
  const size_t at = (',' + header + ',').find(",gzip");
  if (at == header.npos) return false;
  const std::string_view rest = std::string_view(header).substr(at + std::strlen("gzip"));
  const std::string_view parameters = rest.substr(0, rest.find(','));
  if (parameters.empty()) return true;
  return parameters.starts_with(";q=") &&
         parameters.find_first_of("123456789") != std::string_view::npos;
}

// A strong tag is of the bytes that are sent, so the two encodings of a file have two.
std::string entity_tag(const PageFile& file, bool compressed) {
  static const auto digests = [] {
    std::map<std::string_view, std::string> all;
    for (const PageFile& one : page_files()) {
      const auto digest = sha256(one.bytes);
      all[one.name] = fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + 12, ""));
    }
    return all;
  }();
  return fmt::format("\"{}{}\"", digests.at(file.name), compressed ? "-gzip" : "");
}

}  // namespace

std::string plain_bytes(const PageFile& file) {
  if (!file.compressed) return std::string(file.bytes);
  uint32_t size = 0;  // little-endian, as every machine that this server runs on
  std::memcpy(&size, file.bytes.data() + file.bytes.size() - sizeof size, sizeof size);
  std::string plain(size + 1, '\0');  // the stream wants room after its last byte
  boost::beast::zlib::inflate_stream stream;
  boost::beast::zlib::z_params state;
  state.next_in = file.bytes.data() + kGzipHead;
  state.avail_in =
      file.bytes.size() - kGzipHead;  // Beast reads ahead of the last code, into the tail
  state.next_out = plain.data();
  state.avail_out = plain.size();
  boost::beast::error_code error;
  stream.write(state, boost::beast::zlib::Flush::finish, error);
  plain.resize(size);
  if (error != boost::beast::zlib::error::end_of_stream || state.total_out != size)
    fail(ErrorCode::kBadInput, "the page's {} does not decompress: {}", file.name, error.message());
  return plain;
}

std::optional<HttpResponse> page_response(std::string_view name, const HttpRequest& request) {
  const auto files = page_files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const PageFile& one) { return one.name == name; });
  if (file == files.end()) return std::nullopt;
  const bool compressed = file->compressed && takes_gzip(request.header("accept-encoding"));
  const std::string tag = entity_tag(*file, compressed);
  HttpResponse response{.content_type = std::string(file->content_type)};
  response.headers = {{"Content-Security-Policy", std::string(kPolicy)},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"},
                      {"ETag", tag},
                      {"Vary", "Accept-Encoding"}};
  if (request.header("if-none-match").find(tag) != std::string_view::npos) {
    response.status = 304;
    return response;
  }
  if (compressed) response.headers.emplace_back("Content-Encoding", "gzip");
  response.body = compressed ? std::string(file->bytes) : plain_bytes(*file);
  return response;
}

}  // namespace dsv4
