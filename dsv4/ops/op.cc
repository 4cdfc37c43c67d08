#include "dsv4/ops/op.h"

#include <string>

#include "dsv4/base/error.h"
#include "dsv4/tensor/scratch.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {

const char* name(Numerics numerics) {
  return numerics == Numerics::kOfficial ? "official" : "exact";
}

const char* name(Arch arch) {
  switch (arch) {
    case Arch::kCpu:
      return "cpu";
    case Arch::kCuda:
      return "cuda";
    case Arch::kSm90:
      return "sm90";
  }
  return "unknown";
}

Scratch& workspace(const Context& context) {
#if DSV4_CUDA
  if (context.device != nullptr) return context.device->workspace();
#endif
  if (context.workspace == nullptr) {
    fail(ErrorCode::kInvalidArgument,
         "the context has no workspace: an implementation that calls other ops keeps what they "
         "exchange there");
  }
  return *context.workspace;
}

const char* refusal(const Context& context, const ImplInfo& impl) {
  if (context.need_batch_invariant && !impl.batch_invariant) return "not batch invariant";
  if (!context.force_impl.empty() && impl.name != context.force_impl)
    return "not the forced implementation";
  if (reaches(impl.arch, context)) return nullptr;
  return impl.arch == Arch::kCpu ? "tensors are on a device" : "tensors are in host memory";
}

void fail_no_impl(std::string_view op, std::span<const ImplInfo* const> impls,
                  std::span<const char* const> reasons) {
  std::string list;
  for (size_t i = 0; i < impls.size(); ++i) {
    list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", impls[i]->name, reasons[i]);
  }
  fail(ErrorCode::kUnsupported, "{}: no implementation fits ({})", op, list);
}

void fail_unknown_impl(std::string_view op, std::string_view impl) {
  fail(ErrorCode::kUnsupported, "{}: this build has no implementation '{}'", op, impl);
}

#if !DSV4_CUDA
int64_t dry_run_bytes(const Context&, void (*)(const Context&, const void*), const void*) {
  return 0;
}
#endif

}  // namespace dsv4
