#include "tests/harness/row_count.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

namespace dsv4::test {
namespace {

class RowCount : public testing::Environment {
 public:
  std::map<std::string, int> cases;

  void TearDown() override {
    fmt::print("rows checked:");
    for (const auto& [row, count] : cases) fmt::print(" {} {}", row, count);
    fmt::print("\n");
  }
};

}  // namespace

void count_row(const std::string& row) {
  static RowCount* const rows = [] {
    auto* environment = new RowCount;
    testing::AddGlobalTestEnvironment(environment);  // owns it
    return environment;
  }();
  ++rows->cases[row];
}

}  // namespace dsv4::test
