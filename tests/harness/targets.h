// Runs a check once per instruction set that this machine and this build have, through the run-time
// dispatch that callers use. The CUDA build has one, chosen when it was compiled.

#pragma once

#include <gtest/gtest.h>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace dsv4::test {

template <class Check>
void for_each_target(const Check& check) {
#ifdef HWY_COMPILE_ONLY_STATIC
  check();
#else
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
#endif
}

}  // namespace dsv4::test
