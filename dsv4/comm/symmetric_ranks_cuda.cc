#include "dsv4/comm/symmetric_ranks.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/comm/peer_memory.h"
#include "dsv4/comm/process_memory.h"
#include "dsv4/device/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlign = 256;

SymmetricBytes aligned(SymmetricBytes bytes) {
  for (int64_t& half : bytes) half = align_up(half, kAlign);
  return bytes;
}

}  // namespace

SymmetricRanks::SymmetricRanks(int world)
    : begin_(static_cast<size_t>(world)), of_rank_(static_cast<size_t>(world)) {
  DSV4_CHECK(world - 1 <= Mirrors::kMost, "{} ranks share memory, at most {}", world,
             Mirrors::kMost + 1);
}

SymmetricRanks::~SymmetricRanks() = default;

void SymmetricRanks::add(int r, const SymmetricBytes& bytes, std::span<const int> ordinals) {
  DSV4_CHECK(peers_.empty() || bytes_ == aligned(bytes),
             "rank {}: symmetric memory of {} and {} bytes, others have {} and {}", r, bytes[0],
             bytes[1], bytes_[0], bytes_[1]);
  bytes_ = aligned(bytes);
  const auto rank = static_cast<size_t>(r);
  peers_.push_back(std::make_unique<PeerMemory>(ordinals[rank], ordinals, total()));
  begin_[rank] = peers_.back()->data();
  set_places();
}

void SymmetricRanks::open(int r, const SymmetricBytes& bytes, const Swap& swap) {
  close_others();
  // When all have answered, no process has memory of this rank open.
  for (const Bytes& of_other : swap(MessageWriter().put(bytes).bytes()))
    DSV4_CHECK(MessageReader(of_other).get<SymmetricBytes>() == bytes,
               "ranks have symmetric memory of different sizes, here {} and {} bytes", bytes[0],
               bytes[1]);
  bytes_ = aligned(bytes);
  offered_ = nullptr;
  offered_ = std::make_unique<OfferedMemory>(total());
  begin_ = open_offered(*offered_, r, swap, opened_);
  set_places();
}

void SymmetricRanks::close_others() {
  opened_.clear();
  if (offered_ != nullptr) begin_.assign(begin_.size(), nullptr);
}

bool SymmetricRanks::complete() const {
  return std::ranges::count(begin_, nullptr) == 0;
}

bool SymmetricRanks::has(int r, const std::byte* data) const {
  const auto* const at = reinterpret_cast<const unsigned char*>(data);
  const unsigned char* const begin = begin_[static_cast<size_t>(r)];
  return begin <= at && at < begin + total();
}

int64_t SymmetricRanks::distance(int from, int to) const {
  return begin_[static_cast<size_t>(to)] - begin_[static_cast<size_t>(from)];
}

void SymmetricRanks::set_places() {
  if (!complete()) return;
  const int world = static_cast<int>(begin_.size());
  for (int r = 0; r < world; ++r) {
    SymmetricMemory& own = of(r);
    std::byte* at = reinterpret_cast<std::byte*>(begin_[static_cast<size_t>(r)]);
    for (size_t half = 0; half < kSymmetricHalves; at += bytes_[half++])
      own.halves[half] =
          Scratch::borrowing({TensorMeta::contiguous(DType::kU8, {bytes_[half]}), at});
    own.mirrors = {};
    for (int other = 0; other < world; ++other)
      if (other != r) own.mirrors.distance[own.mirrors.count++] = distance(r, other);
  }
}

}  // namespace dsv4
