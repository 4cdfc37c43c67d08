#include "dsv4/device/activity_trace.h"

#include <algorithm>

#include "dsv4/base/error.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace dsv4 {
namespace {

struct CuptiLibrary {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  bool complete = true;

  CuptiLibrary() {
    void* file = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
    // The toolkit's default paths, if the loader's search path does not have it.
    for (const char* path : {"/usr/local/cuda/lib64/libcupti.so.13",
                             "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"})
      if (file == nullptr) file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    find(file, "cuptiActivityRegisterCallbacks", &register_callbacks);
    find(file, "cuptiActivityEnable", &enable);
    find(file, "cuptiActivityDisable", &disable);
    find(file, "cuptiActivityFlushAll", &flush);
    find(file, "cuptiActivityGetNextRecord", &next);
  }

 private:
  template <class Function>
  void find(void* file, const char* name, Function* function) {
    if (file != nullptr) *function = reinterpret_cast<Function>(dlsym(file, name));
    complete = complete && *function != nullptr;
  }
};

const CuptiLibrary& cupti() {
  static const CuptiLibrary library;
  return library;
}

void cupti_check(CUptiResult result, const char* what) {
  if (result != CUPTI_SUCCESS)
    fail(ErrorCode::kUnsupported, "CUPTI: {} gave error {}", what, static_cast<int>(result));
}

// "void dsv4::(anonymous namespace)::rope_kernel<2, float>(float*, ...)" -> "rope_kernel"
std::string short_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? text.get() : mangled;
  for (size_t at = 0; (at = name.find("(anonymous namespace)::", at)) != std::string::npos;)
    name.erase(at, std::string("(anonymous namespace)::").size());
  name.erase(std::min(name.find_first_of("<("), name.size()));
  const size_t space = name.rfind(' '), colons = name.rfind("::");
  const size_t begin = std::max(space == std::string::npos ? 0 : space + 1,
                                colons == std::string::npos ? 0 : colons + 2);
  return name.substr(begin);
}

constexpr size_t kBufferBytes = size_t{8} << 20, kBufferAlignment = 8;

// CUPTI calls back from threads of its own.
std::mutex spans_mutex;
std::vector<KernelSpan> spans;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::unique_ptr<uint8_t, decltype(&std::free)> owner(buffer, &std::free);
  const std::lock_guard<std::mutex> lock(spans_mutex);
  CUpti_Activity* record = nullptr;
  while (cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    spans.push_back({.name = short_name(kernel.name),
                     .start_ns = static_cast<int64_t>(kernel.start),
                     .end_ns = static_cast<int64_t>(kernel.end),
                     .ctas = int64_t{kernel.gridX} * kernel.gridY * kernel.gridZ});
  }
}

}  // namespace

const char* trace_reject() {
  return cupti().complete ? nullptr : "libcupti.so.13 of the CUDA toolkit is not found";
}

void start_trace() {
  if (const char* reason = trace_reject()) fail(ErrorCode::kUnsupported, "no trace: {}", reason);
  static const bool registered = [] {
    cupti_check(cupti().register_callbacks(give_buffer, take_buffer), "register callbacks");
    return true;
  }();
  (void)registered;
  spans.clear();
  cupti_check(cupti().enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "enable");
}

std::vector<KernelSpan> stop_trace() {
  cupti_check(cupti().flush(0), "flush");
  cupti_check(cupti().disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "disable");
  const std::lock_guard<std::mutex> lock(spans_mutex);
  std::sort(spans.begin(), spans.end(),
            [](const KernelSpan& a, const KernelSpan& b) { return a.start_ns < b.start_ns; });
  return std::move(spans);
}

}  // namespace dsv4

#else

namespace dsv4 {

const char* trace_reject() {
  return "built without the headers of CUPTI";
}
void start_trace() {
  fail(ErrorCode::kUnsupported, "no trace: {}", trace_reject());
}
std::vector<KernelSpan> stop_trace() {
  return {};
}

}  // namespace dsv4

#endif
