// ORG/NAME[@REVISION]: a model of Hugging Face's hub, as users write it.

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

struct HubName {
  std::string repo;               // "ORG/NAME"
  std::string revision = "main";  // a branch, a tag or a commit

  std::string text() const;  // without @main
};

// Nothing for a text that the hub would not accept as a name, such as a path of three parts.
std::optional<HubName> parse_hub_name(std::string_view text);

// 40 hexadecimal digits in lower case.
bool is_commit(std::string_view text);

// The parts of a path, which '/' separates. Whether each may be the name of a file in its folder:
// it is not empty, ".", or "..", has at most 255 bytes and no control character.
bool is_relative_path(std::string_view path);

}  // namespace dsv4
