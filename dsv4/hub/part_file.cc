#include "dsv4/hub/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kMark = 0x74726170'34767364;  // "dsv4part" in memory
constexpr int64_t kHeadBytes = 16;              // the mark, bytes of a piece
constexpr int64_t kEntryBytes = 8;

bool write_all(int fd, int64_t offset, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = pwrite(fd, at, size, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    at += done;
    offset += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

bool read_all(int fd, int64_t offset, void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t done = pread(fd, at, size, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = ENODATA;
    if (done <= 0) return false;
    at += done;
    offset += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace

PartFile::PartFile(std::string path, int64_t size)
    : path_(std::move(path)),
      size_(size),
      piece_bytes_(piece_bytes(size)),
      received_(static_cast<size_t>((size + piece_bytes_ - 1) / piece_bytes_)),
      recorded_(received_.size()) {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) fail_with_errno("write");
  if (restore()) return;
  try {
    restart();
  } catch (...) {  // a new file without space is of no use to anyone
    close(fd_);
    unlink(path_.c_str());
    throw;
  }
}

PartFile::~PartFile() {
  if (fd_ >= 0) close(fd_);
}

void PartFile::fail_with_errno(const char* doing) const {
  fail(ErrorCode::kIo, "cannot {} {}: {}", doing, path_, std::strerror(errno));
}

int64_t PartFile::piece_bytes(int64_t size) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return std::clamp((size / 32 + kMiB - 1) / kMiB * kMiB, 4 * kMiB, 64 * kMiB);
}

int64_t PartFile::end(int64_t piece) const {
  return std::min(begin(piece) + piece_bytes_, size_);
}

int64_t PartFile::total_received() const {
  return std::accumulate(received_.begin(), received_.end(), int64_t{0});
}

// False when the file is new, of another size or damaged.
bool PartFile::restore() {
  struct stat info {};
  if (fstat(fd_, &info) != 0) fail_with_errno("read");
  if (info.st_size != size_ + kHeadBytes + num_pieces() * kEntryBytes) return false;
  int64_t head[2] = {};
  if (!read_all(fd_, size_, head, sizeof head)) fail_with_errno("read");
  if (head[0] != kMark || head[1] != piece_bytes_) return false;
  if (!read_all(fd_, size_ + kHeadBytes, received_.data(), received_.size() * kEntryBytes))
    fail_with_errno("read");
  for (int64_t i = 0; i < num_pieces(); ++i) {
    if (received(i) < 0 || received(i) > end(i) - begin(i)) return false;
  }
  recorded_ = received_;
  return true;
}

void PartFile::restart() {
  std::ranges::fill(received_, 0);
  std::ranges::fill(recorded_, 0);
  const int64_t length = size_ + kHeadBytes + num_pieces() * kEntryBytes;
  if (ftruncate(fd_, 0) != 0 || ftruncate(fd_, length) != 0) fail_with_errno("write");
  // A file system that cannot reserve space finds out later that there is none.
  if (fallocate(fd_, 0, 0, length) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINVAL)
    fail_with_errno("write");
  const int64_t head[2] = {kMark, piece_bytes_};
  if (!write_all(fd_, size_, head, sizeof head)) fail_with_errno("write");
}

void PartFile::write(int64_t piece, int64_t offset, std::span<const std::byte> bytes) {
  const int64_t stop = offset + static_cast<int64_t>(bytes.size());
  DSV4_CHECK(
      offset >= begin(piece) && offset <= begin(piece) + received(piece) && stop <= end(piece),
      "bytes [{}, {}) of piece {} of {}", offset, stop, piece, path_);
  if (!write_all(fd_, offset, bytes.data(), bytes.size())) fail_with_errno("write");
  received_[static_cast<size_t>(piece)] = stop - begin(piece);
  record(piece);
}

void PartFile::record(int64_t piece) {
  const auto i = static_cast<size_t>(piece);
  const bool due = received_[i] - recorded_[i] >= kRecordEvery || received_[i] < recorded_[i];
  if (!due && !complete(piece)) return;
  recorded_[i] = received_[i];
  if (!write_all(fd_, size_ + kHeadBytes + piece * kEntryBytes, &recorded_[i], kEntryBytes))
    fail_with_errno("write");
}

void PartFile::read(int64_t offset, std::span<std::byte> bytes) const {
  if (!read_all(fd_, offset, bytes.data(), bytes.size())) fail_with_errno("read");
}

void PartFile::remove(const std::string& path) {
  unlink(path.c_str());
}

void PartFile::commit(const std::string& target) {
  DSV4_CHECK(total_received() == size_, "{} of {} bytes of {}", total_received(), size_, path_);
  if (ftruncate(fd_, size_) != 0 || fsync(fd_) != 0) fail_with_errno("write");
  if (std::rename(path_.c_str(), target.c_str()) != 0) fail_with_errno("rename");
  flush_folder_of(target);
}

int64_t PartFile::allocated(const std::string& path) {
  constexpr int64_t kBlock = 512;  // the unit of st_blocks
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? info.st_blocks * kBlock : 0;
}

}  // namespace dsv4
