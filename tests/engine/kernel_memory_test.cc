// Heap memory that CPU implementations allocate during a step, compared with Workspace::kernels.
// All allocations of this program go through the counters below; sanitizers have their own
// allocator, so nothing can be counted there.

#include <gtest/gtest.h>
#include <malloc.h>
#include <omp.h>

#include <atomic>
#include <cerrno>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/workspace.h"

#ifndef DSV4_SANITIZED  // a sanitizer has its own allocator

namespace {

std::atomic<int64_t> live{0}, peak{0};

void* counted(void* memory) {
  if (memory == nullptr) return memory;
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return memory;
}

void uncount(void* memory) {
  if (memory != nullptr) live -= static_cast<int64_t>(malloc_usable_size(memory));
}

}  // namespace

// glibc's own entry points, so that the names below can be replaced.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) {
  return counted(__libc_malloc(bytes));
}
void* calloc(size_t count, size_t bytes) {
  return counted(__libc_calloc(count, bytes));
}
void* realloc(void* memory, size_t bytes) {
  uncount(memory);
  void* moved = __libc_realloc(memory, bytes);
  return counted(moved == nullptr && bytes > 0 ? memory : moved);
}
void* memalign(size_t align, size_t bytes) {
  return counted(__libc_memalign(align, bytes));
}
void* aligned_alloc(size_t align, size_t bytes) {
  return memalign(align, bytes);
}
int posix_memalign(void** out, size_t align, size_t bytes) {
  *out = memalign(align, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  uncount(memory);
  __libc_free(memory);
}
}

namespace dsv4 {
namespace {

TEST(KernelMemory, StaysBelowThePlan) {
  const Model model = Model::load("models/demo");
  const int threads = omp_get_max_threads();
  for (const int count : {1, 4}) {
    omp_set_num_threads(count);
    for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
      for (const int64_t batch : {1, 40, 1300}) {
        const CacheLimits limits{.max_tokens = 1300, .max_batch_tokens = batch};
        Executor executor(model, Context{.numerics = numerics}, limits);
        const SeqId seq = executor.cache().open();
        Rng rng(5);
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < batch; ++i)
          ids.push_back(static_cast<int32_t>(rng.below(model.config().vocab_size)));
        const Work work{seq, ids, Work::Logits::kLast};
        const int64_t before = live;
        peak = before;
        const int64_t steps = batch == 1 ? 140 : 1300 / batch;
        for (int64_t step = 0; step < steps; ++step) executor.run({&work, 1});
        const int64_t planned =
            plan_workspace(model, {.numerics = numerics}, limits, count).kernels;
        EXPECT_LE(peak - before, planned)
            << name(numerics) << " batch " << batch << " threads " << count;
        // The bound must not be loose either; the share of a thread is rounded up.
        EXPECT_GE(8 * (peak - before) + count * (int64_t{8} << 20), planned);
        RecordProperty(fmt::format("taken_{}_{}_{}", name(numerics), batch, count),
                       fmt::format("{} of {}", peak - before, planned));
      }
    }
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace dsv4

#else

TEST(KernelMemory, StaysBelowThePlan) {
  GTEST_SKIP() << "the sanitizer has its own allocator";
}

#endif
