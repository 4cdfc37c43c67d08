#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

#include "dsv4/base/error.h"

// Each implementation has a folder of its name. Calls with an inverse RoPE reach sm90_fp8, which
// rotates what it stores, or parts, which makes two calls of each.
namespace dsv4::sparse_mla_kernel {

// Packed FP8 entries on Hopper; the invariant one splits every query the same way in any batch.
DSV4_IMPL(SparseMlaArgs, sm90_fp8)
DSV4_IMPL(SparseMlaArgs, sm90_fp8_invariant)
DSV4_IMPL(SparseMlaArgs, parts)
DSV4_IMPL(SparseMlaArgs, sm90_bf16)
DSV4_IMPL(SparseMlaArgs, cuda_mma)
DSV4_IMPL(SparseMlaArgs, cuda)
DSV4_IMPL(SparseMlaArgs, cpu)
namespace cpu {
HostBytes host_bytes(const SparseMlaArgs& args);
}

static bool rotates(const SparseMlaArgs& args) {
  return args.inverse_rope.positions.rank > 0;
}

using Reject = const char* (*)(const Context&, const SparseMlaArgs&);
template <Reject kReject>
const char* unrotated(const Context& context, const SparseMlaArgs& args) {
  return rotates(args) ? "no inverse RoPE" : kReject(context, args);
}

constexpr Impl<SparseMlaArgs> kSparseMla[] = {
#if DSV4_CUDA
    {"sm90_fp8", Arch::kSm90, false, sm90_fp8::reject, sm90_fp8::run},
    {"sm90_fp8_invariant", Arch::kSm90, true, sm90_fp8_invariant::reject, sm90_fp8_invariant::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run},
    {"sm90_bf16", Arch::kSm90, true, unrotated<sm90_bf16::reject>, sm90_bf16::run},
    {"cuda_mma", Arch::kCuda, true, unrotated<cuda_mma::reject>, cuda_mma::run},
    {"cuda", Arch::kCuda, true, unrotated<cuda::reject>, cuda::run},
#endif
    {"parts", Arch::kCpu, true, parts::reject, parts::run},
    {"cpu", Arch::kCpu, true, unrotated<accept_all<SparseMlaArgs>>, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::sparse_mla_kernel

namespace dsv4 {
namespace {

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
  if (!sparse_mla_kernel::rotates(args)) return;
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

constinit const Op<SparseMlaArgs> sparse_mla{"sparse_mla", sparse_mla_kernel::kSparseMla, check,
                                             cost};

}  // namespace dsv4
