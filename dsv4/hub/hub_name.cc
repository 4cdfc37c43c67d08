#include "dsv4/hub/hub_name.h"

#include <algorithm>

#include "dsv4/base/ascii.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxWord = 96, kMaxRevision = 255, kMaxFileName = 255;

bool is_word_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The hub's rule for the two halves of a name.
bool is_repo_word(std::string_view word) {
  const auto good = [](char c) { return is_word_char(c) || c == '-' || c == '.'; };
  return !word.empty() && word.size() <= kMaxWord && std::ranges::all_of(word, good) &&
         is_word_char(word.front()) && is_word_char(word.back()) && word.find("--") == word.npos &&
         word.find("..") == word.npos && !word.ends_with(".git");
}

// A revision names a file below refs/, so it must be a plain relative path.
bool is_revision(std::string_view text) {
  const auto good = [](char c) {
    return is_word_char(c) || c == '-' || c == '.' || c == '/' || c == '+';
  };
  return text.size() <= kMaxRevision && std::ranges::all_of(text, good) && text[0] != '-' &&
         is_relative_path(text);
}

}  // namespace

std::string HubName::text() const {
  return revision == "main" ? repo : repo + "@" + revision;
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.find('@'); at != text.npos) {
    name.revision = text.substr(at + 1);
    text = text.substr(0, at);
    if (name.revision.empty() || !is_revision(name.revision)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == text.npos || !is_repo_word(text.substr(0, slash)) ||
      !is_repo_word(text.substr(slash + 1)))
    return std::nullopt;
  name.repo = text;
  return name;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && is_lower_hex(text);
}

bool is_relative_path(std::string_view path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxFileName) return false;
    begin = end + 1;
  }
  return std::ranges::none_of(
      path, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace dsv4
