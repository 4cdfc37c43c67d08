// Fibers: stacks that one OS thread switches between, and memory between unreadable pages.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace dsv4::emulator {

// Whole pages, with an unreadable page on either side.
class Pages {
 public:
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const void* at) const { return at >= data_ && at < data_ + size_; }

 private:
  std::byte* data_;
  size_t size_;
};

class Fibers {
 public:
  // A fiber that runs body(), which must not throw, when it is first resumed. When the body
  // returns, the fiber's number is free for another one.
  int start(std::function<void()> body);

  // From outside: runs the fiber until it suspends or ends.
  void resume(int fiber);
  // From inside: returns to the caller of resume().
  void suspend();
  // Whether `at` is on the stack of the fiber that runs.
  bool on_stack(const void* at) const {
    return fibers_[static_cast<size_t>(current_)].stack.contains(at);
  }

 private:
  static constexpr size_t kStackBytes = 64 << 10;
  struct Fiber {
    Pages stack{kStackBytes};
    std::function<void()> body;
    ucontext_t start{};
    jmp_buf at{};
    bool started = false;
  };
  static void enter();
  void go(Fiber& fiber);

  std::deque<Fiber> fibers_;
  std::vector<int> free_;
  jmp_buf outside_{};
  int current_ = -1;
};

}  // namespace dsv4::emulator
