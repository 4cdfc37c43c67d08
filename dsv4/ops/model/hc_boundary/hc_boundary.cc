#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/gemm.h"

namespace dsv4::hc_boundary_kernel {

// Up to 64 tokens of 4 bf16 streams on Hopper; with --deterministic any number.
DSV4_IMPL(HcBoundaryArgs, sm90_few)
// More than 32 tokens of 4 bf16 streams under kOfficial, on Hopper: products with fn by tensor
// cores.
DSV4_IMPL(HcBoundaryArgs, sm90_many)
DSV4_IMPL(HcBoundaryArgs, parts)

constexpr Impl<HcBoundaryArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"sm90_many", Arch::kSm90, true, sm90_many::reject, sm90_many::run},
    {"parts", Arch::kCuda, true, reject_columns_of_others, parts::run},
#endif
    {"parts", Arch::kCpu, true, reject_columns_of_others, parts::run},
};

}  // namespace dsv4::hc_boundary_kernel

namespace dsv4 {

const char* reject_columns_of_others(const Context&, const HcBoundaryArgs& args) {
  return args.y_homes.empty() && args.y_words.empty() ? nullptr
                                                      : "columns of y that other ranks have";
}

namespace {

void check(const HcBoundaryArgs& args) {
  Dim t("t"), m("m"), d("d");
  expect("streams", args.streams, {DType::kF32, DType::kBF16}, {t, m, d});
  if (args.y.rank > 0) {
    expect("y", args.y, {DType::kF32, DType::kBF16}, {t, d});
    expect("y_post", args.y_post, {DType::kF32}, {t, m});
    expect("y_comb", args.y_comb, {DType::kF32}, {t, m, m});
    DSV4_CHECK(
        *t == 0 || (args.post.data != args.y_post.data && args.comb.data != args.y_comb.data),
        "{} of the boundary before would be overwritten", "post or comb");
  }
  DSV4_CHECK(args.y.rank > 0 || (args.y_homes.empty() && args.y_words.empty()),
             "ranks have columns of {}, which is not there", "y");
  DSV4_CHECK(args.y_words.empty() || args.y_words.end[args.y_words.world - 1] == *d,
             "ranks have {} of {} columns of y", args.y_words.end[args.y_words.world - 1], *d);
  expect("fn", args.hc.fn, {DType::kF32}, {*m * (2 + *m), *m * *d});
  expect("base", args.hc.base, {DType::kF32}, {*m * (2 + *m)});
  expect("scale", args.hc.scale, {DType::kF32}, {3});
  expect("norm", args.norm, {DType::kF32, DType::kBF16}, {d});
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  expect("post", args.post, {DType::kF32}, {t, m});
  expect("comb", args.comb, {DType::kF32}, {t, m, m});
  if (args.codes.rank == 0) return;
  expect("codes", args.codes, {DType::kE4M3}, {t, d});
  expect("scales", args.scales, {DType::kE8M0}, {t, ceil_div(*d, kActivationGroup)});
}

// Every tensor moves once, the streams twice if they are updated.
Cost cost(const HcBoundaryArgs& args) {
  const bool update = args.y.rank > 0;
  const auto m = static_cast<double>(args.streams.dim(1));
  const int64_t gates = args.post.bytes() + args.comb.bytes();
  Cost cost{.bytes = static_cast<double>(args.streams.bytes() + args.hc.fn.bytes() +
                                         args.norm.bytes() + args.x.bytes() + gates),
            .flops = static_cast<double>(args.streams.numel()) *
                         (2.0 * static_cast<double>(args.hc.fn.dim(0)) + 4.0) +
                     4.0 * static_cast<double>(args.x.numel()),
            .weight_bytes = static_cast<double>(args.hc.fn.bytes())};
  if (args.codes.rank > 0)
    cost.bytes += static_cast<double>(args.codes.bytes() + args.scales.bytes());
  if (!update) return cost;
  cost.bytes += static_cast<double>(args.streams.bytes() + args.y.bytes() + gates);
  cost.flops += static_cast<double>(args.streams.numel()) * (2.0 * m + 1.0);
  return cost;
}

}  // namespace

constinit const Op<HcBoundaryArgs> hc_boundary{"hc_boundary", hc_boundary_kernel::kTable, check,
                                               cost};

void check_boundary_of(const ConstTensorView& x, const HcBoundaryArgs& boundary) {
  if (!is_given(boundary)) return;
  check(boundary);
  DSV4_CHECK(x.data == boundary.x.data && x.rank == 2 && x.dtype == boundary.x.dtype &&
                 x.dim(0) == boundary.x.dim(0) && x.dim(1) == boundary.x.dim(1) &&
                 x.row_stride() == boundary.x.row_stride(),
             "x of the block, {}, is not x of its boundary, {}", to_string(x),
             to_string(boundary.x));
}

}  // namespace dsv4
