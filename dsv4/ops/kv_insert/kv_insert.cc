#include "dsv4/ops/kv_insert/kv_insert.h"

#include "dsv4/ops/kv_insert/kv_insert_cpu.h"
#if DSV4_CUDA
#include "dsv4/ops/kv_insert/kv_insert_cuda.h"
#endif

namespace dsv4 {
namespace {

constexpr Row<KvInsertArgs> kKvInsert[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<KvInsertArgs>, kv_insert_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<KvInsertArgs>, kv_insert_cpu},
};

constexpr Row<IndexInsertArgs> kIndexInsert[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<IndexInsertArgs>, index_insert_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<IndexInsertArgs>, index_insert_cpu},
};

template <class Args>
void check_insert(const Args& args, int64_t width) {
  Dim n("n");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {n, width});
  expect("rows", args.rows, {DType::kI32}, {n});
  check("pool", args.pool);
}

Cost insert_cost(const ConstTensorView& x, int64_t row_bytes) {
  const int64_t n = x.dim(0);
  return {.bytes = static_cast<double>(x.bytes() + n * (row_bytes + item_bytes(DType::kI32))),
          .flops = 2.0 * static_cast<double>(x.numel())};  // largest magnitude, scaling
}

}  // namespace

Table<KvInsertArgs> kv_insert_rows() {
  return kKvInsert;
}
Table<IndexInsertArgs> index_insert_rows() {
  return kIndexInsert;
}

Cost kv_insert_cost(const KvInsertArgs& args) {
  const KvLayout& layout = args.pool.layout;
  return insert_cost(args.x, args.pool.packed() ? layout.row_bytes() : 4 * int64_t{layout.width()});
}
Cost index_insert_cost(const IndexInsertArgs& args) {
  const IndexLayoutFp4& layout = args.pool.layout;
  return insert_cost(args.x, args.pool.packed() ? layout.page_bytes(1) : 4 * int64_t{layout.width});
}

void kv_insert(const Context& context, const KvInsertArgs& args) {
  check_insert(args, args.pool.layout.width());
  DSV4_CHECK(args.pool.pages.dtype != DType::kBF16 && !args.pool.layout.v32(),
             "pool: wants V4 rows or plain F32 rows, got {} {} pages", to_string(args.pool.pages),
             args.pool.layout.v32() ? "V3.2" : "plain");
  choose(kv_insert_rows(), context, args).run(context, args);
}

void index_insert(const Context& context, const IndexInsertArgs& args) {
  check_insert(args, args.pool.layout.width);
  choose(index_insert_rows(), context, args).run(context, args);
}

}  // namespace dsv4
