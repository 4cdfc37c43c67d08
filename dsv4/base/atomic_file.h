// A file that appears complete or not at all: bytes go to a temporary file beside the target, which
// commit() flushes to the disk and renames. Parts may be written in any order. The destructor
// removes the temporary file unless commit() succeeded. Every failure is one kIo error with the
// target's path and the system's reason.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv4 {

class AtomicFile {
 public:
  // mode: permissions of a file that is new, less the umask
  explicit AtomicFile(const std::string& path, unsigned mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail_with_errno() const;

  std::string path_, temporary_;
  int fd_ = -1;
};

// Removes the temporary files of every AtomicFile that is being written. Async-signal-safe: for a
// handler that ends the program.
void remove_temporary_files() noexcept;

// Flushes the folder that holds the file at `path`: only then is a rename to it durable. Throws
// kIo.
void flush_folder_of(const std::string& path);

// Writes a whole small file, all of it or nothing.
void write_file(const std::string& path, std::string_view text);

}  // namespace dsv4
