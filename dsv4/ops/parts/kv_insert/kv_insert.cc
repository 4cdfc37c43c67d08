#include "dsv4/ops/parts/kv_insert/kv_insert.h"

#include "dsv4/base/error.h"

namespace dsv4::kv_insert_kernel {

DSV4_IMPL(KvInsertArgs, cuda)
DSV4_IMPL(KvInsertArgs, cpu)
DSV4_IMPL(IndexInsertArgs, cuda)
DSV4_IMPL(IndexInsertArgs, cpu)

constexpr Impl<KvInsertArgs> kKvInsert[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<KvInsertArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<KvInsertArgs>, cpu::run},
};

constexpr Impl<IndexInsertArgs> kIndexInsert[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<IndexInsertArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<IndexInsertArgs>, cpu::run},
};

}  // namespace dsv4::kv_insert_kernel

namespace dsv4 {
namespace {

template <class Args>
void check_insert(const Args& args, int64_t width) {
  Dim n("n");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {n, width});
  expect("rows", args.rows, {DType::kI32}, {n});
  check("pool", args.pool);
}

void check(const KvInsertArgs& args) {
  check_insert(args, args.pool.layout.width());
  DSV4_CHECK(args.pool.pages.dtype != DType::kBF16,
             "pool: wants packed rows or plain F32 rows, got {} pages", to_string(args.pool.pages));
}

void check(const IndexInsertArgs& args) {
  check_insert(args, args.pool.layout.width);
}

Cost insert_cost(const ConstTensorView& x, int64_t row_bytes) {
  const int64_t n = x.dim(0);
  return {.bytes = static_cast<double>(x.bytes() + n * (row_bytes + item_bytes(DType::kI32))),
          .flops = 2.0 * static_cast<double>(x.numel())};  // largest magnitude, scaling
}

Cost cost(const KvInsertArgs& args) {
  const KvLayout& layout = args.pool.layout;
  return insert_cost(args.x, args.pool.packed() ? layout.row_bytes() : 4 * int64_t{layout.width()});
}

Cost cost(const IndexInsertArgs& args) {
  const IndexLayoutFp4& layout = args.pool.layout;
  return insert_cost(args.x, args.pool.packed() ? layout.page_bytes(1) : 4 * int64_t{layout.width});
}

}  // namespace

constinit const Op<KvInsertArgs> kv_insert{"kv_insert", kv_insert_kernel::kKvInsert, check, cost};
constinit const Op<IndexInsertArgs> index_insert{"index_insert", kv_insert_kernel::kIndexInsert,
                                                 check, cost};

}  // namespace dsv4
