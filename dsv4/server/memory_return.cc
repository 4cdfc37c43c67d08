#include "dsv4/server/memory_return.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace dsv4 {
namespace {

constexpr size_t kLarge = size_t{1} << 20;  // bytes of a body
constexpr std::chrono::seconds kAfterLarge{1}, kAfterAny{5};

}  // namespace

void MemoryReturn::used(size_t bytes) {
  any_ = true;
  large_ |= bytes >= kLarge;
}

bool MemoryReturn::is_due(Time now, bool reading, bool running) {
  if (reading || running) busy_ = now;
  if (reading) return false;
  const bool idle = any_ && now - busy_ >= kAfterAny;
  if (!idle && !(large_ && now - last_ >= kAfterLarge)) return false;
  last_ = now;
  large_ = false;
  any_ = !idle;
  return true;
}

void give_back_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace dsv4
