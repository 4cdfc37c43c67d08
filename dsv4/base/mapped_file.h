// A whole file mapped read-only. Errors name the path and the system's reason.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dsv4 {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Releases the resident pages; they are read again when needed.
  void release_pages() const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Address space that reads as zero and takes memory only where it is written.
class ZeroPages {
 public:
  explicit ZeroPages(int64_t bytes);
  ~ZeroPages();
  ZeroPages(ZeroPages&& other) noexcept;
  ZeroPages& operator=(ZeroPages&& other) noexcept;
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Whether an optional file has to be read. A link to itself or to nothing counts as present, and so
// does what cannot be looked up: opening it says what is wrong.
bool is_present(const std::string& path);

// Whole small file (config, ids, prompts) as a string; kBadInput above `max_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes = size_t{256} << 20);

// Like read_text_file, and of what cannot be mapped as well: a pipe, a terminal, /dev/stdin, a
// process substitution; "-" is standard input.
std::string read_input(const std::string& path, size_t max_bytes = size_t{256} << 20);

}  // namespace dsv4
