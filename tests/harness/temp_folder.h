// A folder for one test, removed with all it holds when the test ends.

#pragma once

#include <stdlib.h>  // mkdtemp is POSIX

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/base/error.h"

namespace dsv4::test {

class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "dsv4-test-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) fail(ErrorCode::kIo, "cannot make {}", path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

  // Writes a file and returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string path = file(name);
    // ext4 writes a file out at once that is truncated and written again; tests do so thousands of
    // times.
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // Names of the files in the folder.
  std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace dsv4::test
