// glibc's checked longjmp takes another stack for a mistake.
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

Fibers::Fibers(int count) : fibers_(static_cast<size_t>(count)) {
}

void Fibers::start(std::function<void(int)> body) {
  body_ = std::move(body);
  for (Fiber& fiber : fibers_) {
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.start, enter, 0);
    fiber.started = false;
  }
}

void Fibers::enter() {
  Fibers& all = *starting;
  all.body_(all.current_);
  _longjmp(all.outside_, 1);
}

// ucontext begins a fiber; after that jumps are enough, and they leave out the system calls.
void Fibers::resume(int i) {
  current_ = i;
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
