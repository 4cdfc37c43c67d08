// Fibers: stacks that one OS thread runs in turns, and memory between unreadable pages for them.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <deque>
#include <functional>

namespace dsv4::emulator {

// Whole pages, an unreadable one on either side.
class Pages {
 public:
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

class Fibers {
 public:
  explicit Fibers(int count);
  // All of them anew: fiber i runs body(i), which must not throw.
  void start(std::function<void(int)> body);

  // From outside: runs fiber i until it suspends or ends.
  void resume(int i);
  // From inside: back to who resumed.
  void suspend();

 private:
  static constexpr size_t kStackBytes = 64 << 10;
  struct Fiber {
    Pages stack{kStackBytes};
    ucontext_t start{};
    jmp_buf at{};
    bool started = false;
  };
  static void enter();
  void go(Fiber& fiber);

  std::deque<Fiber> fibers_;
  std::function<void(int)> body_;
  jmp_buf outside_{};
  int current_ = -1;
};

}  // namespace dsv4::emulator
