// A file that arrives in pieces, in any order and from several threads, and survives a kill: what
// was received is recorded behind the bytes of the file itself.
//
//   SIZE bytes of the file | mark, bytes of a piece | for each piece the bytes that it has, from
//                            (8 bytes each)           its begin (8 bytes each)
//
// commit() cuts the record off and renames the file, so a partial file is never at the final
// path. The record may be up to kRecordEvery bytes per piece older than the data; after a power
// failure it may also be newer, which the hash of the whole file finds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dsv4 {

class PartFile {
 public:
  static constexpr int64_t kRecordEvery = int64_t{1} << 20;
  // A 32nd of a file of this size, but from 4 to 64 MiB, in whole MiB.
  static int64_t piece_bytes(int64_t size);

  // Continues the file at `path` if it is a part of a file of this size, otherwise starts it,
  // reserving its space. Throws kIo.
  PartFile(std::string path, int64_t size);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  int64_t num_pieces() const { return static_cast<int64_t>(received_.size()); }
  int64_t begin(int64_t piece) const { return piece * piece_bytes_; }
  int64_t end(int64_t piece) const;
  int64_t received(int64_t piece) const { return received_[static_cast<size_t>(piece)]; }
  bool complete(int64_t piece) const { return begin(piece) + received(piece) == end(piece); }
  int64_t total_received() const;

  // Bytes of a piece, which continue it or replace its end: offset <= begin + received. Different
  // threads may write different pieces.
  void write(int64_t piece, int64_t offset, std::span<const std::byte> bytes);
  void read(int64_t offset, std::span<std::byte> bytes) const;

  void restart();  // forgets all that was received
  // Flushes the complete file to the disk and renames it; nothing may follow.
  void commit(const std::string& target);

  // Bytes on the disk that a part at `path` already has.
  static int64_t allocated(const std::string& path);
  static void remove(const std::string& path);

 private:
  [[noreturn]] void fail_with_errno(const char* doing) const;
  bool restore();
  void record(int64_t piece);

  std::string path_;
  int64_t size_, piece_bytes_;
  int fd_ = -1;
  std::vector<int64_t> received_, recorded_;  // bytes of each piece; as the file says
};

}  // namespace dsv4
