// Messages between ranks that are processes: a kind and bytes. They are written and read value by
// value; a reader that finds less than it wants throws kBadInput.
//
// Both ends are the same program (rank_processes.h compares them), so values are stored as in
// memory.

#pragma once

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "dsv4/base/error.h"

namespace dsv4 {

using Bytes = std::vector<std::byte>;
// Gives all ranks some bytes and returns those of each: RankProcesses::swap()
using Swap = std::function<std::vector<Bytes>(const Bytes&)>;

class MessageWriter {
 public:
  template <class T>
  MessageWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return raw(&value, sizeof value);
  }
  template <class T>
  MessageWriter& list(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<uint64_t>(values.size()));
    return raw(values.data(), values.size_bytes());
  }
  MessageWriter& text(const std::string& value) { return list(std::span<const char>(value)); }
  MessageWriter& raw(const void* from, size_t bytes) {
    const size_t end = bytes_.size();
    bytes_.resize(end + bytes);
    if (bytes > 0) std::memcpy(bytes_.data() + end, from, bytes);
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(static_cast<void*>(&value), raw(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> list() {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto size = get<uint64_t>();
    if (size > rest_.size() / sizeof(T)) too_short(size);
    std::vector<T> values(size);
    const std::byte* from = raw(size * sizeof(T));
    if (size > 0) std::memcpy(static_cast<void*>(values.data()), from, size * sizeof(T));
    return values;
  }
  std::string text() {
    const std::vector<char> chars = list<char>();
    return {chars.begin(), chars.end()};
  }
  const std::byte* raw(size_t bytes) {
    if (bytes > rest_.size()) too_short(bytes);
    const std::byte* const at = rest_.data();
    rest_ = rest_.subspan(bytes);
    return at;
  }
  void end() const {
    if (!rest_.empty())
      fail(ErrorCode::kBadInput, "a message of another rank has {} bytes too many", rest_.size());
  }

 private:
  [[noreturn]] void too_short(uint64_t want) const {
    fail(ErrorCode::kBadInput, "a message of another rank ends: want {} more, there are {}", want,
         rest_.size());
  }
  std::span<const std::byte> rest_;
};

}  // namespace dsv4
