#include "dsv4/loader/checkpoint_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "dsv4/base/error.h"

namespace dsv4 {

CheckpointReader::~CheckpointReader() {
  for (const auto& [path, fd] : open_) close(fd);
}

int CheckpointReader::descriptor(std::string_view path) {
  const auto [at, fresh] = open_.emplace(path, -1);
  if (fresh) at->second = ::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (at->second < 0) {
    open_.erase(at);
    fail(ErrorCode::kIo, "cannot open {}: {}", path, std::strerror(errno));
  }
  return at->second;
}

void CheckpointReader::read(const std::byte* from, int64_t bytes, std::byte* to) {
  const auto place = checkpoint_.place(from);
  if (!place) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  const int fd = descriptor(place->path);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(fd, to + done, static_cast<size_t>(bytes - done), place->offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail(ErrorCode::kIo, "cannot read {}: {}", place->path,
           got == 0 ? "it became shorter" : std::strerror(errno));
    done += got;
  }
}

}  // namespace dsv4
