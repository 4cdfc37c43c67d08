#include "dsv4/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// False with errno.
bool folder_is_flushed(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  // Some file systems cannot flush folders and report EINVAL; nothing more can be done then.
  const bool flushed = fsync(fd) == 0 || errno == EINVAL;
  const int reason = errno;
  close(fd);
  errno = reason;
  return flushed;
}

// Names of temporary files, where a signal handler can read them. A file beyond the slots, or with
// a longer name, stays behind after a signal.
struct Slot {
  std::atomic<bool> taken = false;  // by a thread
  std::atomic<bool> shown = false;  // the name is complete
  char name[4096] = {};
};
Slot slots[16];

void take_slot(const std::string& name) {
  if (name.size() >= sizeof(Slot::name)) return;
  for (Slot& slot : slots) {
    if (slot.taken.exchange(true)) continue;
    std::memcpy(slot.name, name.c_str(), name.size() + 1);
    slot.shown = true;
    return;
  }
}

void release_slot(const std::string& name) {
  for (Slot& slot : slots) {
    if (!slot.shown || name != slot.name) continue;
    slot.shown = false;
    slot.taken = false;
  }
}

}  // namespace

void remove_temporary_files() noexcept {
  for (const Slot& slot : slots) {
    if (slot.shown) unlink(slot.name);
  }
}

AtomicFile::AtomicFile(const std::string& path, unsigned mode) : path_(path) {
  // A rename would replace a device such as /dev/null with a file.
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    fail(ErrorCode::kIo, "cannot write {}: not a regular file", path);
  static std::atomic<int> counter = 0;
  do {  // skips names left over from a killed process
    temporary_ = fmt::format("{}.{}-{}.tmp", path, getpid(), counter++);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_with_errno();
  take_slot(temporary_);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  release_slot(temporary_);
}

void AtomicFile::fail_with_errno() const {
  fail(ErrorCode::kIo, "cannot write {}: {}", path_, std::strerror(errno));
}

void AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno();
    bytes = bytes.subspan(static_cast<size_t>(done));
    offset += done;
  }
}

void AtomicFile::commit() {
  if (fsync(fd_) != 0) fail_with_errno();
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) fail_with_errno();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno();
  release_slot(temporary_);
  temporary_.clear();
  if (!folder_is_flushed(path_)) fail_with_errno();
}

void flush_folder_of(const std::string& path) {
  if (!folder_is_flushed(path))
    fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
}

void write_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace dsv4
