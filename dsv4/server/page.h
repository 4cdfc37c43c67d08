// The chat page: its files are compiled in, most of them compressed, and load nothing from
// elsewhere. cmake/web_page.cmake bundles them from dsv4/server/page/ and the libraries that
// docs/adr/0026 names.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/server/http.h"

namespace dsv4 {

struct PageFile {
  std::string_view name;          // "app.js", "fonts/KaTeX_Main-Regular.woff2"
  std::string_view content_type;  // of what the client sees
  std::string_view bytes;
  bool compressed;  // the bytes are of the gzip format
};

std::span<const PageFile> page_files();

// The file as a client sees it that takes no gzip.
std::string plain_bytes(const PageFile& file);

// Answers a request for a file of the page; nothing where there is none of this name. The page
// itself is "page.html". A client that has the file already (If-None-Match) gets 304.
std::optional<HttpResponse> page_response(std::string_view name, const HttpRequest& request);

}  // namespace dsv4
