#include "apps/version.h"

#include <fmt/format.h>

#include <hwy/highway.h>

namespace dsv4::apps {
namespace {

struct CpuTarget {
  int64_t bit;
  const char* name;
};
// Highway's own names are in its library, which the CUDA build does not link.
constexpr CpuTarget kCpuTargets[] = {{HWY_AVX3_DL, "AVX-512 (Ice Lake)"},
                                     {HWY_AVX3, "AVX-512"},
                                     {HWY_AVX2, "AVX2"},
                                     {HWY_SSE4, "SSE4"},
                                     {HWY_SSSE3, "SSSE3"},
                                     {HWY_SVE2, "SVE2"},
                                     {HWY_SVE, "SVE"},
                                     {HWY_NEON, "NEON"},
                                     {HWY_EMU128, "emulated"},
                                     {HWY_SCALAR, "one lane"}};

// Every layer is compiled with the flags of this file (dsv4_flags), so its list applies to all.
std::string cpu_targets() {
  std::string text;
  for (const CpuTarget& target : kCpuTargets) {
    if ((HWY_TARGETS & target.bit) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", target.name);
  }
  return text;
}

}  // namespace

std::string version_text() {
  return fmt::format("dsv4 {}\nCPU: {}\nCUDA: {}", DSV4_VERSION, cpu_targets(), DSV4_CUDA_TARGETS);
}

}  // namespace dsv4::apps
