#include "tests/harness/impl_count.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace dsv4::test {
namespace {

bool whole_run() {
  return GTEST_FLAG_GET(filter) == "*" && std::getenv("GTEST_TOTAL_SHARDS") == nullptr;
}

std::set<std::string, std::less<>>& elsewhere() {
  static std::set<std::string, std::less<>> names;
  return names;
}

class ImplCount : public testing::Environment {
 public:
  std::vector<ImplTally> impls;

  void TearDown() override {
    std::map<std::string, int> accepted;
    for (const ImplTally& impl : impls) accepted[impl.name] += impl.accepted;
    fmt::print("implementations checked:");
    for (const auto& [name, cases] : accepted) fmt::print(" {} {}", name, cases);
    fmt::print("\n");
    if (gpu() == nullptr) {
      fmt::print(
          "not checked without a GPU: CUDA implementations, exact workspace, graph replay, "
          "programmatic dependent launch\n");
    }
    if (!whole_run()) return;
    const std::string untested = untested_impls(impls, gpu_capability(), elsewhere());
    if (!untested.empty()) ADD_FAILURE() << untested;
  }
};

// sm_90a code runs on 9.0 and nothing else.
bool has(ComputeCapability gpu, Arch arch) {
  if (arch == Arch::kSm90) return gpu.major == 9 && gpu.minor == 0;
  return arch == Arch::kCuda && gpu.major > 0;
}

}  // namespace

std::string untested_impls(const std::vector<ImplTally>& impls, ComputeCapability gpu,
                           const std::set<std::string, std::less<>>& elsewhere) {
  std::string lines;
  for (const ImplTally& impl : impls) {
    if (!has(gpu, impl.arch) || impl.accepted > 0 || elsewhere.contains(impl.name)) continue;
    lines += fmt::format("{} took none of {} cases, the last: {}\n", impl.name, impl.rejected,
                         impl.reason);
  }
  return lines;
}

TestedElsewhere::TestedElsewhere(std::initializer_list<std::string_view> impls) {
  for (const std::string_view impl : impls) elsewhere().emplace(impl);
}

void count_impl(const void* impl, std::string_view name, Arch arch, const char* rejected) {
  static ImplCount* const count = [] {
    auto* environment = new ImplCount;
    testing::AddGlobalTestEnvironment(environment);  // owns it
    return environment;
  }();
  auto& impls = count->impls;
  auto tally =
      std::find_if(impls.begin(), impls.end(), [&](const auto& r) { return r.impl == impl; });
  if (tally == impls.end()) {
    tally = impls.insert(tally, {.impl = impl, .name = std::string(name), .arch = arch});
  }
  if (rejected == nullptr) {
    ++tally->accepted;
  } else {
    ++tally->rejected;
    tally->reason = rejected;
  }
}

}  // namespace dsv4::test
