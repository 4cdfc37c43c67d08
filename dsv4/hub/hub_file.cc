#include "dsv4/hub/hub_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/hub/hub_name.h"
#include "dsv4/loader/shallow_json.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxKeys = 4'000'000;             // of one answer
constexpr size_t kMaxPath = 1024;                   // bytes
constexpr int64_t kMaxFileSize = int64_t{1} << 46;  // 64 TiB; 65536 of them still fit an int64
constexpr size_t kSha1Digits = 40, kSha256Digits = 64;

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && is_lower_hex(text);
}

// A text field of an object; empty where there is none.
std::string text_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

int64_t size_of(const Json& object, const std::string& path, const std::string& what) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_unsigned() ||
      at->get<uint64_t>() > static_cast<uint64_t>(kMaxFileSize))
    fail(ErrorCode::kBadInput, "{}: the size of {} is not a number from 0 to {}", what,
         quotable(path), kMaxFileSize);
  return at->get<int64_t>();
}

HubFile file_of(const Json& entry, const std::string& what) {
  HubFile file{.path = text_of(entry, "path")};
  if (file.path.size() > kMaxPath || !is_relative_path(file.path))
    fail(ErrorCode::kBadInput, "{} lists a file as '{}', which is no path inside the model", what,
         quotable(file.path));
  const auto lfs = entry.find("lfs");
  file.lfs = lfs != entry.end() && lfs->is_object();
  const Json& stored = file.lfs ? *lfs : entry;
  file.size = size_of(stored, file.path, what);
  file.oid = text_of(stored, "oid");
  if (file.lfs && file.oid.starts_with("sha256:")) file.oid.erase(0, 7);
  if (!is_hex(file.oid, file.lfs ? kSha256Digits : kSha1Digits))
    fail(ErrorCode::kBadInput, "{}: the hash of {} is '{}'", what, quotable(file.path),
         quotable(file.oid));
  return file;
}

}  // namespace

std::string parse_hub_commit(std::string_view json, const std::string& what) {
  const Json answer = parse_shallow_json(json, what, kMaxKeys);
  std::string commit = answer.is_object() ? text_of(answer, "sha") : "";
  if (!is_commit(commit)) fail(ErrorCode::kBadInput, "{}: no commit in the answer", what);
  return commit;
}

std::vector<HubFile> parse_hub_tree(std::string_view json, const std::string& what) {
  const Json answer = parse_shallow_json(json, what, kMaxKeys);
  if (!answer.is_array()) fail(ErrorCode::kBadInput, "{}: no list of files in the answer", what);
  std::vector<HubFile> files;
  for (const Json& entry : answer) {
    if (!entry.is_object()) fail(ErrorCode::kBadInput, "{}: a file is not an object", what);
    if (text_of(entry, "type") == "file") files.push_back(file_of(entry, what));
  }
  return files;
}

void check_hub_paths(const std::vector<HubFile>& files, const std::string& what) {
  std::set<std::string_view> paths;
  for (const HubFile& file : files) {
    if (!paths.insert(file.path).second)
      fail(ErrorCode::kBadInput, "{} lists {} twice", what, quotable(file.path));
  }
  for (const HubFile& file : files) {
    for (size_t slash = file.path.find('/'); slash != file.path.npos;
         slash = file.path.find('/', slash + 1)) {
      if (paths.count(std::string_view(file.path).substr(0, slash)) != 0)
        fail(ErrorCode::kBadInput, "{} lists {} both as a file and as a folder", what,
             quotable(file.path.substr(0, slash)));
    }
  }
}

std::string next_page(std::string_view link) {
  while (!link.empty()) {
    const size_t begin = link.find('<'), end = link.find('>', begin);
    if (begin == link.npos || end == link.npos) return "";
    const std::string_view url = link.substr(begin + 1, end - begin - 1);
    const size_t next = std::min(link.find('<', end), link.size());
    const std::string_view parameters = link.substr(end, next - end);
    if (parameters.find("rel=\"next\"") != parameters.npos ||
        parameters.find("rel=next") != parameters.npos)
      return std::string(url);
    link.remove_prefix(next);
  }
  return "";
}

double retry_after_s(std::string_view header) {
  double seconds = -1;
  const auto [stop, error] = std::from_chars(header.data(), header.data() + header.size(), seconds);
  const bool whole = error == std::errc() && stop == header.data() + header.size();
  return whole && std::isfinite(seconds) && seconds >= 0 ? seconds : -1;
}

bool parse_content_range(std::string_view header, ContentRange* range) {
  constexpr std::string_view kUnit = "bytes ";
  if (!header.starts_with(kUnit)) return false;
  const char *at = header.data() + kUnit.size(), *end = header.data() + header.size();
  const auto number = [&](int64_t* value, char after) {
    const auto [stop, error] = std::from_chars(at, end, *value);
    if (error != std::errc() || *value < 0) return false;
    at = stop;
    if (after == '\0') return at == end;
    return at < end && *at++ == after;
  };
  return number(&range->first, '-') && number(&range->last, '/') && number(&range->size, '\0');
}

bool is_other_format(std::string_view path) {
  constexpr std::array<std::string_view, 12> kEndings = {
      ".bin",       ".pt", ".pth",     ".gguf", ".ggml",   ".onnx",
      ".onnx_data", ".h5", ".msgpack", ".ckpt", ".tflite", ".mlmodel"};
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return path.ends_with(end); });
}

}  // namespace dsv4
