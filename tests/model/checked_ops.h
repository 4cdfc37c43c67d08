// The op entry points once more, for one test program: each call of the network is answered by the
// row that would have run, and compared on the spot with the op's fp64 oracle on the same inputs.
//
// This object is linked in front of dsv4_ops (see tests/CMakeLists.txt), so dsv4_model calls these.

#pragma once

#include <map>
#include <string>

namespace dsv4::test {

struct OpRecord {
  int calls = 0;
  int failures = 0;
  std::string first_failure;
};

std::map<std::string, OpRecord>& op_records();

}  // namespace dsv4::test
