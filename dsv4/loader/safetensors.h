// The safetensors file format, read by memory map and written atomically.
//
//   u64 little endian n | n bytes of JSON | data
//   JSON: {"__metadata__": {text: text}, NAME: {"dtype": T, "shape": [..], "data_offsets": [b, e]}}
//
// Offsets count from the start of the data. As in the reference implementation, the tensors must
// cover the data exactly: no overlap, no hole, no trailing bytes. A file that breaks any rule is
// rejected as a whole with one error; no allocation is sized by a number that a header claims.
//
// A file must not shrink while it is mapped: reads past its end raise SIGBUS.

#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/base/mapped_file.h"
#include "dsv4/tensor/buffer.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

inline constexpr size_t kMaxSafetensorsHeader = size_t{100}
                                                << 20;  // the limit of the reference implementation
inline constexpr size_t kMaxTensorName = 1024;          // bytes

struct SafetensorsIndex {
  std::map<std::string, ConstTensorView> tensors;  // views into the bytes that were parsed
  std::map<std::string, std::string> metadata;
};

// `bytes` is a whole file; `what` names it in errors (kBadInput). Views may be misaligned for their
// dtype; SafetensorsFile copies those.
SafetensorsIndex parse_safetensors(std::span<const std::byte> bytes, const std::string& what);

// Parses a file of `file_bytes` of which only the beginning is there, with the whole header. The
// views have addresses, but no memory.
SafetensorsIndex parse_safetensors_header(std::string_view begin, int64_t file_bytes,
                                          const std::string& what);
// Bytes of the length and the JSON of a file that begins like this; 0: it is no safetensors file.
int64_t safetensors_header_bytes(std::string_view begin);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // Every view is aligned for its dtype. The format only recommends alignment: a tensor that the
  // file holds misaligned is copied once, the others point into the mapping.
  const std::map<std::string, ConstTensorView>& tensors() const { return index_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return index_.metadata; }
  size_t num_copied() const { return copies_.size(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }  // the whole file
  void release_pages() const { file_.release_pages(); }               // base/mapped_file.h

 private:
  MappedFile file_;
  SafetensorsIndex index_;
  std::vector<Buffer> copies_;
};

// Writes a temporary file beside `path`, flushes it to the disk and renames it: on any failure
// (kIo) an older file at `path` is untouched and no temporary file remains. Tensors must be
// contiguous; they are laid out by decreasing item size, which keeps each aligned without holes.
void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, ConstTensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dsv4
