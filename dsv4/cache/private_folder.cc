#include "dsv4/cache/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4 {

void make_private_folder(const std::string& path, bool may_be_link) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(ErrorCode::kIo, "cannot make the folder {} of the prefix cache: {}", path,
         std::strerror(errno));
  }
  struct stat info {};
  if ((may_be_link ? stat(path.c_str(), &info) : lstat(path.c_str(), &info)) != 0)
    fail(ErrorCode::kIo, "cannot read the folder {}: {}", path, std::strerror(errno));
  if (!S_ISDIR(info.st_mode)) {
    fail(ErrorCode::kBadInput, "{} is {}: the prefix cache wants a folder there", path,
         S_ISLNK(info.st_mode) ? "a link" : "no folder");
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    fail(ErrorCode::kBadInput,
         "the folder {} belongs to user {}, who could forge what is stored there: give a folder of "
         "user {}",
         path, info.st_uid, geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    fail(ErrorCode::kBadInput,
         "other users may write the folder {} (mode {:04o}) and could forge what is stored there: "
         "chmod go-w it, or give another one",
         path, info.st_mode & 07777);
  }
}

int open_private_file(const std::string& path, bool make) {
  // O_NONBLOCK: opening a pipe would otherwise wait for its other end.
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (make ? O_CREAT : 0);
  const int file = open(path.c_str(), flags, 0600);
  struct stat info {};
  if (file < 0) return -1;
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid()) return file;
  close(file);
  errno = EPERM;
  return -1;
}

}  // namespace dsv4
