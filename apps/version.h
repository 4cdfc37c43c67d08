// What `dsv4 --version` prints.

#pragma once

#include <string>

namespace dsv4::apps {

// The version, the commit (a + means that files differ from it) and the targets of the build:
//   dsv4 0.2.0 (0132202a1b)
//   CPU: AVX-512, AVX2, one lane
//   CUDA: sm_80 and PTX, sm_90a        or: none
std::string version_text();

}  // namespace dsv4::apps
