// Writes of n tokens to the first n rows of a packed pool.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t n : bench::token_counts()) {
    bench::register_case(fmt::format("kv_insert/{} rows", n), kv_insert,
                         [=](auto& arena, auto& random) {
                           return test::filled_pool<KvInsertArgs>(arena, random, KvLayout{}, n);
                         });
    bench::register_case(
        fmt::format("index_insert/{} rows", n), index_insert, [=](auto& arena, auto& random) {
          return test::filled_pool<IndexInsertArgs>(arena, random, IndexLayoutFp4{}, n);
        });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
