// An exclusive lock on a file that exists for this purpose, as huggingface_hub takes it (flock): a
// second process that wants to write the same blob waits for the first.

#pragma once

#include <memory>
#include <string>

namespace dsv4 {

class FileLock {
 public:
  // Null: another process, or another lock of this one, has it. The file is made if it is missing
  // and stays. On a file system without locks every attempt succeeds. Throws kIo.
  static std::unique_ptr<FileLock> try_lock(const std::string& path);

  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace dsv4
