#include "dsv4/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail(ErrorCode::kIo, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  if (fstat(file.fd, &info) != 0)
    fail(ErrorCode::kIo, "cannot stat {}: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(ErrorCode::kIo, "cannot read {}: not a regular file", path);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;  // mmap refuses length 0; the span stays empty
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail(ErrorCode::kIo, "cannot map {}: {}", path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release_pages() const {
  // The mapping is private and never written, so nothing is lost. If madvise fails, the pages stay
  // resident.
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

ZeroPages::ZeroPages(int64_t bytes) : size_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
  void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    fail(ErrorCode::kResource, "cannot reserve {} bytes of address space: {}", bytes,
         std::strerror(errno));
  data_ = static_cast<std::byte*>(data);
}

ZeroPages::~ZeroPages() {
  if (data_ != nullptr) munmap(data_, size_);
}

ZeroPages::ZeroPages(ZeroPages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {
}

ZeroPages& ZeroPages::operator=(ZeroPages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {

void check_size(const std::string& path, size_t bytes, size_t max_bytes) {
  if (bytes > max_bytes)
    fail(ErrorCode::kBadInput, "{} has {} bytes, more than the limit of {}", path, bytes,
         max_bytes);
}

std::string read_descriptor(int fd, const std::string& what, size_t max_bytes) {
  std::string text;
  constexpr size_t kStep = size_t{1} << 16;
  while (true) {
    const size_t had = text.size();
    text.resize(had + kStep);
    const ssize_t got = read(fd, text.data() + had, kStep);
    if (got < 0 && errno != EINTR)
      fail(ErrorCode::kIo, "cannot read {}: {}", what, std::strerror(errno));
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (text.size() > max_bytes)
      fail(ErrorCode::kBadInput, "{} has more bytes than the limit of {}", what, max_bytes);
  }
}

}  // namespace

bool is_present(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string read_input(const std::string& path, size_t max_bytes) {
  if (path == "-") return read_descriptor(STDIN_FILENO, "standard input", max_bytes);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) fail(ErrorCode::kIo, "cannot open {}: {}", path, std::strerror(errno));
  return read_descriptor(file.fd, path, max_bytes);
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  const MappedFile file(path);
  check_size(path, file.bytes().size(), max_bytes);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace dsv4
