// The number of cases that docs/spec/serving.md 10.3 wants.

#include <gtest/gtest.h>

#include "tests/chat/client_text.h"

namespace dsv4 {
namespace {

TEST(RenderSlow, ClientTextNeverBecomesAMarker) {
  test::check_client_text(12, 100'000);
}

}  // namespace
}  // namespace dsv4
