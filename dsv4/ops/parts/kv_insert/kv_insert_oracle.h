// Oracles of kv_insert.h: the values that are read back from the rows. Linked by tests and
// benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4 {

// [n, width]; rows with a negative id are left out.
std::vector<double> kv_insert_oracle(const KvInsertArgs& args);
std::vector<double> index_insert_oracle(const IndexInsertArgs& args);

}  // namespace dsv4
