// Reads tensors of a checkpoint from its files instead of the mappings, which would count as memory
// of the process. One thread each; files are opened at their first use.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "dsv4/loader/checkpoint.h"

namespace dsv4 {

class CheckpointReader {
 public:
  // The checkpoint outlives the reader.
  explicit CheckpointReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  // Copies bytes that a view of the checkpoint shows at `from`; those that no file holds
  // (Checkpoint::place) are copied from memory. Throws kIo.
  void read(const std::byte* from, int64_t bytes, std::byte* to);

 private:
  int descriptor(std::string_view path);

  const Checkpoint& checkpoint_;
  std::map<std::string_view, int> open_;
};

}  // namespace dsv4
