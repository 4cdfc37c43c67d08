// A file of the prefix cache: whatever its bytes are, it is read whole or refused.

#include <sys/mman.h>
#include <unistd.h>

#include "dsv4/cache/unit_file.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(memfd_create("unit", MFD_CLOEXEC)) {
    fuzz::require(fd_ >= 0 && write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

void read_all(const std::string& path, size_t size) {
  const UnitHeader header = read_unit_header(path);
  fuzz::require(header.payload_bytes() + 4 * header.run < static_cast<int64_t>(size));
  std::vector<std::byte> blocks(static_cast<size_t>(header.blocks() * header.layout.block_bytes)),
      checkpoint(static_cast<size_t>(header.layout.checkpoint_bytes));
  UnitPieces pieces{.blocks = {blocks}, .checkpoint = {checkpoint}};
  read_unit(path, header, pieces);
  fuzz::require(static_cast<int64_t>(pieces.ids.size()) == header.run);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const dsv4::MemoryFile file(data, size);
  dsv4::fuzz::allow_bad_input([&] { dsv4::read_all(file.path(), size); });
  return 0;
}
