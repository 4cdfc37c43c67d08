// glibc's checked longjmp reports a jump to another stack as an error.
#undef _FORTIFY_SOURCE

#include "tests/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4::emulator {
namespace {

Fibers* starting = nullptr;  // an entry function has no arguments

}  // namespace

Pages::Pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_ = static_cast<size_t>(align_up(static_cast<int64_t>(bytes), static_cast<int64_t>(page)));
  void* all = mmap(nullptr, size_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) fail(ErrorCode::kResource, "no {} bytes for the emulator", size_);
  data_ = static_cast<std::byte*>(all) + page;
  if (mprotect(data_, size_, PROT_READ | PROT_WRITE) != 0)
    fail(ErrorCode::kResource, "no {} bytes for the emulator", size_);
}
Pages::~Pages() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(data_ - page, size_ + 2 * page);
}

int Fibers::start(std::function<void()> body) {
  if (free_.empty()) {
    free_.push_back(static_cast<int>(fibers_.size()));
    fibers_.emplace_back();
  }
  const int number = free_.back();
  free_.pop_back();
  Fiber& fiber = fibers_[static_cast<size_t>(number)];
  fiber.body = std::move(body);
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.data();
  fiber.start.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.start, enter, 0);
  fiber.started = false;
  return number;
}

void Fibers::enter() {
  Fibers& all = *starting;
  all.fibers_[static_cast<size_t>(all.current_)].body();
  all.free_.push_back(all.current_);
  _longjmp(all.outside_, 1);
}

// ucontext starts a fiber; later switches are jumps, which need no system call.
void Fibers::resume(int fiber) {
  current_ = fiber;
  if (_setjmp(outside_) == 0) go(fibers_[static_cast<size_t>(current_)]);
}
void Fibers::go(Fiber& fiber) {
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  starting = this;
  setcontext(&fiber.start);
}

void Fibers::suspend() {
  if (_setjmp(fibers_[static_cast<size_t>(current_)].at) == 0) _longjmp(outside_, 1);
}

}  // namespace dsv4::emulator
