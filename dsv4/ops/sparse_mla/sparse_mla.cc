#include "dsv4/ops/sparse_mla/sparse_mla.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/sparse_mla/by_request.h"
#include "dsv4/ops/sparse_mla/implementations.h"
#if DSV4_CUDA
#include "dsv4/ops/sparse_mla/implementations.h"
#endif

namespace dsv4 {
namespace {

constexpr Impl<SparseMlaArgs> kSparseMla[] = {
#if DSV4_CUDA
    {"sm90_fp8", Arch::kSm90, false, sparse_mla_sm90_fp8_reject, sparse_mla_sm90_fp8},
    {"sm90_fp8_invariant", Arch::kSm90, true, sparse_mla_sm90_fp8_invariant_reject,
     sparse_mla_sm90_fp8_invariant},
    {"sm90_bf16", Arch::kSm90, true, sparse_mla_sm90_bf16_reject, sparse_mla_sm90_bf16},
    {"cuda_mma", Arch::kCuda, true, sparse_mla_cuda_mma_reject, sparse_mla_cuda_mma, 0,
     sparse_mla_cuda_mma_workspace},
    {"cuda", Arch::kCuda, true, sparse_mla_cuda_reject, sparse_mla_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<SparseMlaArgs>, sparse_mla_cpu},
};

struct Dims {
  Dim b{"b"}, s_q{"s_q"}, h{"h"}, d{"d"}, d_v{"d_v"};
};

// In the form of by_request(), so that one list of lines checks both ranks.
void check(const char* name, const KvList& list, Dims& dims) {
  if (list.rows.rank == 0) return;
  Dim n("n");
  expect(name, list.rows, {DType::kI32}, {dims.b, dims.s_q, n});
  if (!list.lengths.empty()) {
    expect(fmt::format("{}.lengths", name).c_str(), list.lengths, {DType::kI32}, {dims.b});
  }
  if (list.rows.numel() == 0) return;
  check(name, list.pool);
  DSV4_CHECK(list.pool.layout.width() == *dims.d, "{}: rows of {} values for queries of {}", name,
             list.pool.layout.width(), *dims.d);
}

void check_ranks(const SparseMlaArgs& args) {
  const int rank = args.q.rank;
  DSV4_CHECK(rank == 3 || rank == 4, "q: want [t, h, d] or [b, s_q, h, d], got {}",
             to_string(args.q));
  const auto check_rank = [&](const char* name, const TensorMeta& meta, int want) {
    DSV4_CHECK(meta.rank == want || meta.rank == 0, "{}: want rank {} beside q {}, got {}", name,
               want, to_string(args.q), to_string(meta));
  };
  check_rank("window", args.window.rows, rank - 1);
  check_rank("compressed", args.compressed.rows, rank - 1);
  check_rank("out", args.out, rank);
  check_rank("lse", args.lse, rank - 1);
  check_rank("max_logits", args.max_logits, rank - 1);
}

void check(const SparseMlaArgs& given) {
  check_ranks(given);
  const SparseMlaArgs args = by_request(given);
  Dims dims;
  expect("q", args.q, {DType::kF32, DType::kBF16}, {dims.b, dims.s_q, dims.h, dims.d});
  DSV4_CHECK(args.scale > 0, "scale={}", args.scale);
  check("window", args.window, dims);
  check("compressed", args.compressed, dims);
  if (!args.sink.empty()) expect("sink", args.sink, {DType::kF32}, {dims.h});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {dims.b, dims.s_q, dims.h, dims.d_v});
  DSV4_CHECK(1 <= *dims.d_v && *dims.d_v <= *dims.d, "out: d_v={} of queries of {}", *dims.d_v,
             *dims.d);
  if (!args.lse.empty()) expect("lse", args.lse, {DType::kF32}, {dims.b, dims.h, dims.s_q});
  if (!args.max_logits.empty()) {
    expect("max_logits", args.max_logits, {DType::kF32}, {dims.b, dims.h, dims.s_q});
  }
  DSV4_CHECK(args.normalized || !args.max_logits.empty() || args.out.numel() == 0,
             "normalized=false without max_logits: out {} is relative to them",
             to_string(given.out));
}

// Every listed row moves once per query; neither lengths nor invalid ids are looked at here, they
// may be on a device.
double list_bytes(const KvList& list) {
  if (list.rows.rank == 0 || list.rows.numel() == 0) return 0;
  return static_cast<double>(list.rows.numel() * (list.pool.row_bytes() + item_bytes(DType::kI32)));
}

Cost cost(const SparseMlaArgs& args) {
  const auto bytes = [](const TensorView& view) { return view.empty() ? 0 : view.bytes(); };
  const double rows = static_cast<double>(topk_of(args.window) + topk_of(args.compressed));
  return {.bytes = static_cast<double>(args.q.bytes() + args.out.bytes() + bytes(args.lse) +
                                       bytes(args.max_logits)) +
                   list_bytes(args.window) + list_bytes(args.compressed),
          .flops = 2.0 * static_cast<double>(args.q.numel() + args.out.numel()) * rows};
}

}  // namespace

constinit const Op<SparseMlaArgs> sparse_mla{"sparse_mla", kSparseMla, check, cost};

}  // namespace dsv4
