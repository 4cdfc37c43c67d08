// What the hub says about the files of a model: answers of its API, which are untrusted.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

struct HubFile {
  std::string path;  // in the model's folder: is_relative_path()
  int64_t size = 0;  // bytes
  // Name of its blob and hash of its bytes: SHA-256 of a large file (`lfs`), otherwise git's SHA-1
  // of "blob SIZE\0" and the bytes. Hexadecimal.
  std::string oid;
  bool lfs = false;
};

// The commit of GET /api/models/ORG/NAME/revision/REVISION. Throws kBadInput, prefixed with `what`.
std::string parse_hub_commit(std::string_view json, const std::string& what);

// A page of GET /api/models/ORG/NAME/tree/COMMIT?recursive=true, without the folders. Throws
// kBadInput for a path that leads out of the folder, and for impossible sizes and hashes.
std::vector<HubFile> parse_hub_tree(std::string_view json, const std::string& what);

// Throws kBadInput when two files have one path, or a file's path is another's folder.
void check_hub_paths(const std::vector<HubFile>& files, const std::string& what);

// The address of the next page in a header "Link: <URL>; rel="next""; empty: the last page.
std::string next_page(std::string_view link);

// Seconds that "Retry-After: SECONDS" says; -1: it says nothing that is a number.
double retry_after_s(std::string_view header);

// "bytes 0-99/1000": first and last byte, and the size of the file. False: not of this form.
struct ContentRange {
  int64_t first = 0, last = 0, size = 0;
};
bool parse_content_range(std::string_view header, ContentRange* range);

// Whether the file is weights of another program's format (.bin, .gguf, ...), which dsv4 does not
// read.
bool is_other_format(std::string_view path);

}  // namespace dsv4
