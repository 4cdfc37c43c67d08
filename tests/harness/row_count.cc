#include "tests/harness/row_count.h"

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

class RowCount : public testing::Environment {
 public:
  std::vector<RowTally> rows;

  void TearDown() override {
    std::map<std::string, int> accepted;
    for (const RowTally& row : rows) accepted[row.name] += row.accepted;
    fmt::print("rows checked:");
    for (const auto& [name, cases] : accepted) fmt::print(" {} {}", name, cases);
    fmt::print("\n");
    if (!whole_run()) return;
    const std::string untested = untested_rows(rows, gpu_capability(), elsewhere());
    if (!untested.empty()) ADD_FAILURE() << untested;
  }
};

// sm_90a code runs on 9.0 and nothing else.
bool has(ComputeCapability gpu, Arch arch) {
  if (arch == Arch::kSm90) return gpu.major == 9 && gpu.minor == 0;
  return arch == Arch::kCuda && gpu.major > 0;
}

}  // namespace

std::string untested_rows(const std::vector<RowTally>& rows, ComputeCapability gpu,
                          const std::set<std::string, std::less<>>& elsewhere) {
  std::string lines;
  for (const RowTally& row : rows) {
    if (!has(gpu, row.arch) || row.accepted > 0 || elsewhere.contains(row.name)) continue;
    lines += fmt::format("row {} took none of {} cases, the last: {}\n", row.name, row.rejected,
                         row.reason);
  }
  return lines;
}

TestedElsewhere::TestedElsewhere(std::initializer_list<std::string_view> rows) {
  for (const std::string_view row : rows) elsewhere().emplace(row);
}

void count_row(const void* row, std::string_view name, Arch arch, const char* rejected) {
  static RowCount* const count = [] {
    auto* environment = new RowCount;
    testing::AddGlobalTestEnvironment(environment);  // owns it
    return environment;
  }();
  auto& rows = count->rows;
  auto tally = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.row == row; });
  if (tally == rows.end()) {
    tally = rows.insert(tally, {.row = row, .name = std::string(name), .arch = arch});
  }
  if (rejected == nullptr) {
    ++tally->accepted;
  } else {
    ++tally->rejected;
    tally->reason = rejected;
  }
}

}  // namespace dsv4::test
