#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla_impls.h"

namespace dsv4 {
namespace {

bool rotates(const SparseMlaArgs& args) {
  return args.inverse_rope.positions.rank > 0;
}

const char* parts_reject(const Context&, const SparseMlaArgs& args) {
  return rotates(args) ? nullptr : "no inverse RoPE: one call";
}

using Reject = const char* (*)(const Context&, const SparseMlaArgs&);
template <Reject kReject>
const char* unrotated(const Context& context, const SparseMlaArgs& args) {
  return rotates(args) ? "no inverse RoPE" : kReject(context, args);
}

constexpr Impl<SparseMlaArgs> kSparseMla[] = {
#if DSV4_CUDA
    {"sm90_fp8", Arch::kSm90, false, sparse_mla_sm90_fp8_reject, sparse_mla_sm90_fp8},
    {"sm90_fp8_invariant", Arch::kSm90, true, sparse_mla_sm90_fp8_invariant_reject,
     sparse_mla_sm90_fp8_invariant},
    {"parts", Arch::kCuda, true, parts_reject, sparse_mla_parts},
    {"sm90_bf16", Arch::kSm90, true, unrotated<sparse_mla_sm90_bf16_reject>, sparse_mla_sm90_bf16},
    {"cuda_mma", Arch::kCuda, true, unrotated<sparse_mla_cuda_mma_reject>, sparse_mla_cuda_mma},
    {"cuda", Arch::kCuda, true, unrotated<sparse_mla_cuda_reject>, sparse_mla_cuda},
#endif
    {"parts", Arch::kCpu, true, parts_reject, sparse_mla_parts},
    {"cpu", Arch::kCpu, true, unrotated<accept_all<SparseMlaArgs>>, sparse_mla_cpu, 0,
     sparse_mla_cpu_bytes},
};

struct Dims {
  Dim b{"b"}, s_q{"s_q"}, h{"h"}, d{"d"}, d_v{"d_v"};
};

void check(const char* name, const KvList& list, Dims& dims) {
  if (list.indices.rank == 0) return;
  Dim topk("topk");
  expect(name, list.indices, {DType::kI32}, {dims.b, dims.s_q, topk});
  if (!list.topk_length.empty()) {
    expect(fmt::format("{}.topk_length", name).c_str(), list.topk_length, {DType::kI32}, {dims.b});
  }
  if (list.indices.numel() == 0) return;
  check(name, list.pool);
  DSV4_CHECK(list.pool.layout.width() == *dims.d, "{}: rows of {} values for queries of {}", name,
             list.pool.layout.width(), *dims.d);
}

void check(const SparseMlaArgs& args) {
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
             to_string(args.out));
  if (!rotates(args)) return;
  const InverseRope& rope = args.inverse_rope;
  Dim num_pairs("num_pairs");
  expect("positions", rope.positions, {DType::kI32}, {dims.b, dims.s_q});
  expect("freqs", rope.freqs, {DType::kF32}, {num_pairs});
  DSV4_CHECK(rope.positions.is_contiguous(), "positions must be contiguous, got {}",
             to_string(rope.positions));
  DSV4_CHECK(args.normalized && *dims.d_v == *dims.d,
             "inverse RoPE of {}: wants normalized outputs of d={}", to_string(args.out), *dims.d);
}

// Every index moves one cache row per query; topk_length and the indices themselves are not read
// here, they may be on a device.
double cache_bytes(const KvList& list) {
  if (list.indices.rank == 0 || list.indices.numel() == 0) return 0;
  return static_cast<double>(list.indices.numel() * list.pool.row_bytes());
}

Cost cost(const SparseMlaArgs& args) {
  const auto bytes = [](const auto& view) { return view.empty() ? 0 : view.bytes(); };
  const double rows = static_cast<double>(args.window.topk() + args.compressed.topk());
  const double cache = cache_bytes(args.window) + cache_bytes(args.compressed);
  return {.bytes = cache + static_cast<double>(args.q.bytes() + args.out.bytes() + bytes(args.lse) +
                                               bytes(args.max_logits) + bytes(args.window.indices) +
                                               bytes(args.compressed.indices)),
          .flops = 2.0 * static_cast<double>(args.q.numel() + args.out.numel()) * rows,
          .cache_bytes = cache};
}

}  // namespace

constinit const Op<SparseMlaArgs> sparse_mla{"sparse_mla", kSparseMla, check, cost};

}  // namespace dsv4
