// The web page: one file, compiled in, that loads nothing from elsewhere.

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

extern const std::string_view kWebPage;

// Content-Security-Policy that lets a page run its own inline script and style and nothing else.
std::string page_policy(std::string_view page);

}  // namespace dsv4
