#include "dsv4/hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// A lock on a file that someone has removed meanwhile is worth nothing: others lock a new one.
bool is_still_at(int fd, const std::string& path) {
  struct stat locked {
  }, now{};
  return fstat(fd, &locked) == 0 && stat(path.c_str(), &now) == 0 && locked.st_ino == now.st_ino &&
         locked.st_dev == now.st_dev;
}

}  // namespace

std::unique_ptr<FileLock> FileLock::try_lock(const std::string& path) {
  for (;;) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd < 0) fail(ErrorCode::kIo, "cannot lock {}: {}", path, std::strerror(errno));
    std::unique_ptr<FileLock> lock(new FileLock(fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK || errno == EACCES) return nullptr;
      return lock;
    }
    if (is_still_at(fd, path)) return lock;
  }
}

FileLock::~FileLock() {
  close(fd_);
}

}  // namespace dsv4
