// Runs a check once per instruction set that this machine and this build have, through the run-time
// dispatch that callers use.

#pragma once

#include <gtest/gtest.h>

#include "hwy/highway.h"

namespace dsv4::test {

template <class Check>
void for_each_target(const Check& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace dsv4::test
