#include "tests/harness/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "tests/harness/gpu.h"

namespace dsv4::test {
namespace {

constexpr size_t kCanaryBytes = 64;
constexpr auto kCanary = std::byte{0xa5};
constexpr auto kPoison = std::byte{0xff};

bool is_float(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

// Units of `unit` bytes in reverse order.
void reverse_units(std::byte* data, int64_t bytes, int64_t unit) {
  for (int64_t i = 0, j = bytes - unit; i < j; i += unit, j -= unit)
    std::swap_ranges(data + i, data + i + unit, data + j);
}

}  // namespace

Arena::~Arena() {
  for (const Block& block : blocks_) {
    if (gpu() != nullptr) forget_pages(block.map);
    munmap(block.map, block.map_bytes);
  }
}

TensorView Arena::make(Role role, DType dtype, std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<size_t>(meta.bytes());
  const auto body = static_cast<size_t>(
      align_up(static_cast<int64_t>(bytes + kCanaryBytes), static_cast<int64_t>(page)));
  void* map =
      mmap(nullptr, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DSV4_CHECK(map != MAP_FAILED, "mmap of {} bytes", body + page);
  auto* base = static_cast<std::byte*>(map);
  DSV4_CHECK(mprotect(base + body, page, PROT_NONE) == 0, "mprotect");
  if (gpu() != nullptr) let_gpu_address(map, body);
  std::byte* data = base + body - bytes;
  std::fill(data - kCanaryBytes, data, kCanary);
  blocks_.push_back({.role = role,
                     .view = TensorView(meta, data),
                     .map = base,
                     .map_bytes = body + page,
                     .canary = data - kCanaryBytes,
                     .frozen = {}});
  return blocks_.back().view;
}

void Arena::freeze() {
  for (Block& block : blocks_)
    block.frozen.assign(block.view.data, block.view.data + block.view.bytes());
}

void Arena::prepare() {
  for (const Block& block : blocks_) {
    if (block.role == Role::kOutput) std::fill_n(block.view.data, block.view.bytes(), kPoison);
    if (block.role == Role::kInOut)
      std::copy(block.frozen.begin(), block.frozen.end(), block.view.data);
  }
}

void Arena::verify() const {
  for (const Block& block : blocks_) {
    EXPECT_TRUE(
        std::all_of(block.canary, block.view.data, [](std::byte b) { return b == kCanary; }))
        << "bytes before a tensor were written: " << to_string(block.view);
    if (block.role != Role::kInput) continue;
    EXPECT_TRUE(std::equal(block.frozen.begin(), block.frozen.end(), block.view.data))
        << "an input was changed: " << to_string(block.view);
  }
}

std::vector<std::byte> Arena::written() const {
  std::vector<std::byte> bytes;
  for (const Block& block : blocks_) {
    if (block.role == Role::kInput) continue;
    bytes.insert(bytes.end(), block.view.data, block.view.data + block.view.bytes());
  }
  return bytes;
}

void Arena::reverse() {
  prepare();
  for (const Block& block : blocks_) {
    const TensorView& view = block.view;
    if (block.role == Role::kOutput || block.ordered || view.numel() == 0) continue;
    const int64_t unit = is_float(view.dtype) ? item_bytes(view.dtype) : view.bytes() / view.dim(0);
    reverse_units(view.data, view.bytes(), unit);
  }
}

std::vector<Write> Arena::frozen_contents() const {
  std::vector<Write> writes;
  for (const Block& block : blocks_) {
    if (block.role == Role::kOutput) continue;
    writes.push_back({block.view.data, block.frozen.data(), block.view.bytes()});
  }
  return writes;
}

Role Arena::role_of(const std::byte* data) const {
  for (const Block& block : blocks_) {
    if (block.map <= data && data < block.map + block.map_bytes) return block.role;
  }
  return Role::kInput;
}

Arena::Block& Arena::block_of(const TensorView& view) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Block& block) { return block.view.data == view.data; });
  DSV4_CHECK(found != blocks_.end(), "no tensor of this arena: {}", to_string(view));
  return *found;
}

}  // namespace dsv4::test
