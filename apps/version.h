// What `dsv4 --version` prints.

#pragma once

#include <string>

namespace dsv4::apps {

// The version and the targets of the build:
//   dsv4 0.1.0
//   CPU: AVX-512, AVX2, one lane
//   CUDA: sm_80 and PTX, sm_90a        or: none
std::string version_text();

}  // namespace dsv4::apps
