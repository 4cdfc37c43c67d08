#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/mhc/mhc_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kStreams = 4, kWidth = 4096;
constexpr size_t kLayers = 64;  // of 1.5 MB: larger than a cache

// A call with the fn of one layer after the other.
template <class Args>
struct LayersCase : bench::Case<Args> {
  std::vector<ConstTensorView> fn;  // [kLayers] of [rows, columns]
  size_t layer = 0;

  template <class Build>
  explicit LayersCase(const Build& build) {
    bench::Random random(1);
    this->args = build(this->arena, random);
    for (size_t i = 0; i < kLayers; ++i) {
      fn.push_back(
          test::random_fn(this->arena, random, this->args.fn.dim(0), this->args.fn.dim(1)));
    }
  }
  void next() { this->args.fn = fn[layer++ % kLayers]; }
};

template <class Args, class Build>
void register_layers(const std::string& name, const Op<Args>& op, const Build& build) {
  bench::register_impls(name, op, [build] { return std::make_shared<LayersCase<Args>>(build); });
}

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    const std::string shape = fmt::format("{}x4x4096", t);
    register_layers("hc_pre/" + shape, hc_pre, [=](auto& arena, auto& random) {
      return test::random_hc_pre(arena, random, t, kStreams, kWidth, DType::kBF16);
    });
    bench::register_case("hc_post/" + shape, hc_post, [=](auto& arena, auto& random) {
      return test::random_hc_post(arena, random, t, kStreams, kWidth, DType::kBF16, DType::kBF16,
                                  0.25);
    });
    register_layers("hc_head/" + shape, hc_head, [=](auto& arena, auto& random) {
      return test::random_hc_head(arena, random, t, kStreams, kWidth, DType::kBF16);
    });
    bench::register_case("hc_mean/" + shape, hc_mean, [=](auto& arena, auto& random) {
      return test::random_hc_mean(arena, random, t, kStreams, kWidth, DType::kBF16);
    });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
