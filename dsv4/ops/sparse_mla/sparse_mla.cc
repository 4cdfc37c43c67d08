#include "dsv4/ops/sparse_mla/sparse_mla.h"

#include "dsv4/ops/sparse_mla/sparse_mla_cpu.h"
#if DSV4_CUDA
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"
#endif

namespace dsv4 {
namespace {

constexpr Row<SparseMlaArgs> kSparseMla[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, sparse_mla_cuda_reject, sparse_mla_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<SparseMlaArgs>, sparse_mla_cpu},
};

void check(const char* name, const KvList& list, Dim& t, int64_t d) {
  if (list.rows.rank == 0) return;
  Dim n("n");
  expect(name, list.rows, {DType::kI32}, {t, n});
  if (list.rows.numel() == 0) return;
  check(name, list.pool);
  DSV4_CHECK(list.pool.layout.width() == d, "{}: rows of {} values for queries of {}", name,
             list.pool.layout.width(), d);
}

void check(const SparseMlaArgs& args) {
  Dim t("t"), h("h"), d("d");
  expect("q", args.q, {DType::kF32, DType::kBF16}, {t, h, d});
  DSV4_CHECK(args.scale > 0, "scale={}", args.scale);
  check("window", args.window, t, *d);
  check("compressed", args.compressed, t, *d);
  if (!args.sink.empty()) expect("sink", args.sink, {DType::kF32}, {h});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, h, d});
  if (!args.lse.empty()) expect("lse", args.lse, {DType::kF32}, {t, h});
}

// Every listed row moves once per query; invalid ids are not looked at here, they may be on a
// device.
double list_bytes(const KvList& list) {
  if (list.rows.rank == 0 || list.rows.numel() == 0) return 0;
  const KvLayout& layout = list.pool.layout;
  const int64_t row = list.pool.packed() ? layout.entry_bytes() + layout.scale_bytes()
                                         : layout.width() * item_bytes(DType::kF32);
  return static_cast<double>(list.rows.numel() * (row + item_bytes(DType::kI32)));
}

}  // namespace

Table<SparseMlaArgs> sparse_mla_rows() {
  return kSparseMla;
}

Cost sparse_mla_cost(const SparseMlaArgs& args) {
  const auto listed = [](const KvList& list) { return list.rows.rank == 0 ? 0 : list.rows.dim(1); };
  const double rows = static_cast<double>(listed(args.window) + listed(args.compressed));
  const int64_t lse_bytes = args.lse.empty() ? 0 : args.lse.bytes();
  return {.bytes = static_cast<double>(args.q.bytes() + args.out.bytes() + lse_bytes) +
                   list_bytes(args.window) + list_bytes(args.compressed),
          .flops = 4.0 * static_cast<double>(args.q.numel()) * rows};
}

void sparse_mla(const Context& context, const SparseMlaArgs& args) {
  check(args);
  choose(sparse_mla_rows(), context, args).run(context, args);
}

}  // namespace dsv4
