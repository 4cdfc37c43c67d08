// OracleCheck: an observer that compares every op call of a forward pass with the op's fp64 oracle,
// on the actual inputs of the call.

#pragma once

#include <map>
#include <string>

#include "dsv4/ops/op.h"

namespace dsv4::test {

struct OpRecord {
  int calls = 0;
  int failures = 0;
  std::string first_failure;
};

class OracleCheck final : public Observer {
 public:
  void observe(const OpCall& call) override;

  // Keyed by op name.
  const std::map<std::string, OpRecord, std::less<>>& records() const { return records_; }

 private:
  std::map<std::string, OpRecord, std::less<>> records_;
};

}  // namespace dsv4::test
