#include "dsv4/cache/unit_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr std::array<char, 8> kMagic = {'D', 'S', 'V', '4', 'P', 'F', 'X', '1'},
                              kEndMagic = {'D', 'S', 'V', '4', 'P', 'F', 'X', 'E'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kAlignment = 64;
constexpr size_t kSections = 4;

using Hash = std::array<uint8_t, 16>;

struct Section {
  uint64_t offset = 0, length = 0;
  Hash hash{};
};

// The bytes at the start of the file; every field is at its natural alignment.
struct FileHeader {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion, header_bytes = sizeof(FileHeader);
  Digest fingerprint{};
  std::array<uint8_t, 16> salt{}, key{}, parent{};
  uint64_t position = 0;
  uint32_t run = 0, block_bytes = 0;
  uint64_t checkpoint_bytes = 0;
  uint32_t step = 0, flags = 0;
  std::array<Section, kSections> sections{};
  Hash hash{};
};
static_assert(sizeof(FileHeader) == 272 && offsetof(FileHeader, position) == 96 &&
              offsetof(FileHeader, sections) == 128 && offsetof(FileHeader, hash) == 256);

struct Trailer {
  uint64_t file_bytes = 0;
  std::array<char, 8> magic = kEndMagic;
};
static_assert(sizeof(Trailer) == 16);

enum : size_t { kIds, kBlocks, kCheckpoint };

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    if (state_ == nullptr) fail(ErrorCode::kResource, "no memory for a hash");
    XXH3_128bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  Hash result() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    Hash hash;
    std::copy_n(canonical.digest, hash.size(), hash.begin());
    return hash;
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

Hash hash_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.result();
}

Hash header_hash(const FileHeader& header) {
  return hash_of(bytes_of(header).first(offsetof(FileHeader, hash)));
}

FileHeader file_header(const UnitHeader& header) {
  FileHeader file{.fingerprint = header.fingerprint,
                  .salt = header.salt.bytes,
                  .key = header.key.bytes,
                  .parent = header.parent.bytes,
                  .position = static_cast<uint64_t>(header.position),
                  .run = static_cast<uint32_t>(header.run),
                  .block_bytes = static_cast<uint32_t>(header.layout.block_bytes),
                  .checkpoint_bytes = static_cast<uint64_t>(header.layout.checkpoint_bytes),
                  .step = static_cast<uint32_t>(header.layout.step)};
  const std::array<int64_t, kSections> lengths = {4 * header.run,
                                                  header.blocks() * header.layout.block_bytes,
                                                  header.layout.checkpoint_bytes, 0};
  int64_t at = align_up(sizeof(FileHeader), kAlignment);
  for (size_t i = 0; i < kSections; ++i) {
    file.sections[i].offset = static_cast<uint64_t>(at);
    file.sections[i].length = static_cast<uint64_t>(lengths[i]);
    at = align_up(at + lengths[i], kAlignment);
  }
  return file;
}

UnitHeader unit_header(const FileHeader& file) {
  return {.fingerprint = file.fingerprint,
          .salt = {file.salt},
          .key = {file.key},
          .parent = {file.parent},
          .position = static_cast<int64_t>(file.position),
          .run = file.run,
          .layout = {.step = file.step,
                     .block_bytes = file.block_bytes,
                     .checkpoint_bytes = static_cast<int64_t>(file.checkpoint_bytes)}};
}

// After the last section.
int64_t trailer_offset(const FileHeader& file) {
  return align_up(static_cast<int64_t>(file.sections.back().offset + file.sections.back().length),
                  kAlignment);
}

void check_sizes(const UnitHeader& header, const UnitPieces& pieces) {
  const auto total = [](const std::vector<std::span<std::byte>>& list) {
    size_t sum = 0;
    for (const std::span<std::byte> piece : list) sum += piece.size();
    return static_cast<int64_t>(sum);
  };
  const UnitLayout& layout = header.layout;
  DSV4_CHECK(layout.step > 0 && header.run > 0 && header.run % layout.step == 0 &&
                 header.run <= header.position,
             "a unit of {} tokens at {}, in steps of {}", header.run, header.position, layout.step);
  DSV4_CHECK(total(pieces.blocks) == header.blocks() * layout.block_bytes &&
                 total(pieces.checkpoint) == layout.checkpoint_bytes,
             "pieces of {} and {} bytes for a unit of {} tokens", total(pieces.blocks),
             total(pieces.checkpoint), header.run);
}

class InputFile {
 public:
  InputFile(const std::string& path, UnitOwner owner)
      // Without O_NONBLOCK, opening a pipe would wait for its writer.
      : path_(path),
        file_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK |
                                     (owner == UnitOwner::kThisUser ? O_NOFOLLOW : 0))} {
    struct stat info {};
    if (file_.fd < 0 && errno == ELOOP) damaged("a link");
    if (file_.fd < 0 || fstat(file_.fd, &info) != 0) fail_with_errno();
    if (!S_ISREG(info.st_mode)) damaged("not a regular file");
    if (owner == UnitOwner::kThisUser && info.st_uid != geteuid()) damaged("another user's file");
    size_ = info.st_size;
  }

  int64_t size() const { return size_; }
  void read_at(int64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t done = pread(file_.fd, bytes.data(), bytes.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail_with_errno();
      if (done == 0) damaged("it ends early");
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += done;
    }
  }
  [[noreturn]] void damaged(const char* why) const {
    fail(ErrorCode::kBadInput, "{} is not a whole unit of the prefix cache: {}", path_, why);
  }

 private:
  [[noreturn]] void fail_with_errno() const {
    fail(ErrorCode::kIo, "cannot read {}: {}", path_, std::strerror(errno));
  }

  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) close(fd);
    }
  };
  std::string path_;
  const Descriptor file_;
  int64_t size_ = 0;
};

// Between a section and the next one there are zeros.
void check_gap(const InputFile& file, int64_t from) {
  std::array<std::byte, kAlignment> gap{};
  const auto size = static_cast<size_t>(align_up(from, kAlignment) - from);
  file.read_at(from, std::span(gap).first(size));
  if (std::any_of(gap.begin(), gap.end(), [](std::byte byte) { return byte != std::byte{0}; }))
    file.damaged("bytes between the sections");
}

// The header, after everything was checked that can be checked without the sections.
FileHeader read_header(const InputFile& file) {
  FileHeader header;
  if (file.size() < static_cast<int64_t>(sizeof header)) file.damaged("too short");
  file.read_at(0, writable_bytes_of(header));
  if (header.magic != kMagic) file.damaged("it begins with other bytes");
  if (header.version != kVersion || header.header_bytes != sizeof header)
    file.damaged("written by another version");
  if (header.hash != header_hash(header)) file.damaged("the header's hash differs");
  const UnitHeader unit = unit_header(header);
  const bool whole_steps = unit.layout.step > 0 && unit.run > 0 &&
                           unit.run % unit.layout.step == 0 && unit.run <= unit.position &&
                           (!unit.is_root() || unit.run == unit.position);
  const int64_t most = file.size(), block = std::max<int64_t>(unit.layout.block_bytes, 1);
  if (!whole_steps || unit.layout.checkpoint_bytes < 0 || unit.layout.checkpoint_bytes > most ||
      unit.run > most || unit.blocks() > most / block)
    file.damaged("impossible lengths");
  const FileHeader expected = file_header(unit);
  for (size_t i = 0; i < kSections; ++i) {
    if (header.sections[i].offset != expected.sections[i].offset ||
        header.sections[i].length != expected.sections[i].length)
      file.damaged("impossible sections");
  }
  check_gap(file, sizeof(FileHeader));
  const int64_t end = trailer_offset(header);
  if (file.size() != end + static_cast<int64_t>(sizeof(Trailer)))
    file.damaged("the size is not the header's");
  Trailer trailer;
  file.read_at(end, writable_bytes_of(trailer));
  if (trailer.magic != kEndMagic || trailer.file_bytes != static_cast<uint64_t>(file.size()))
    file.damaged("the end is missing");
  return header;
}

void read_section(const InputFile& file, const Section& section,
                  std::span<const std::span<std::byte>> pieces) {
  Hasher hasher;
  auto at = static_cast<int64_t>(section.offset);
  for (const std::span<std::byte> piece : pieces) {
    file.read_at(at, piece);
    hasher.add(piece);
    at += static_cast<int64_t>(piece.size());
  }
  if (hasher.result() != section.hash) file.damaged("a section's hash differs");
  check_gap(file, at);
}

}  // namespace

void write_unit(const std::string& path, const UnitHeader& header, const UnitPieces& pieces) {
  check_sizes(header, pieces);
  FileHeader out = file_header(header);
  AtomicFile file(path, 0600);
  const auto write = [&](Section& section, std::span<const std::span<std::byte>> list) {
    Hasher hasher;
    auto at = static_cast<int64_t>(section.offset);
    for (const std::span<const std::byte> piece : list) {
      hasher.add(piece);
      file.write_at(at, piece);
      at += static_cast<int64_t>(piece.size());
    }
    section.hash = hasher.result();
  };
  std::vector<int32_t> ids = pieces.ids;
  const std::span<std::byte> id_bytes = std::as_writable_bytes(std::span(ids));
  write(out.sections[kIds], {&id_bytes, 1});
  write(out.sections[kBlocks], pieces.blocks);
  write(out.sections[kCheckpoint], pieces.checkpoint);
  out.sections[kSections - 1].hash = hash_of({});
  out.hash = header_hash(out);
  const int64_t end = trailer_offset(out);
  file.write_at(0, bytes_of(out));
  file.write_at(end, bytes_of(Trailer{.file_bytes = static_cast<uint64_t>(end) + sizeof(Trailer)}));
  file.commit();
}

UnitHeader read_unit_header(const std::string& path, UnitOwner owner) {
  return unit_header(read_header(InputFile(path, owner)));
}

void read_unit(const std::string& path, const UnitHeader& header, UnitPieces& pieces,
               UnitOwner owner) {
  check_sizes(header, pieces);
  const InputFile file(path, owner);
  const FileHeader found = read_header(file);
  if (unit_header(found) != header) file.damaged("it holds another text");
  pieces.ids.resize(static_cast<size_t>(header.run));
  const std::span<std::byte> ids = std::as_writable_bytes(std::span(pieces.ids));
  read_section(file, found.sections[kIds], {&ids, 1});
  read_section(file, found.sections[kBlocks], pieces.blocks);
  read_section(file, found.sections[kCheckpoint], pieces.checkpoint);
}

}  // namespace dsv4
