// One of many copies that are made together.

#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

}  // namespace dsv4
