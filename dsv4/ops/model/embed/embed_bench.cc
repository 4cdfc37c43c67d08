#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/embed/embed.h"

namespace dsv4 {
namespace {

constexpr int64_t kVocabulary = 32768, kStreams = 4;

struct Case {
  bench::Tensor ids, table, out;
  EmbedArgs args;

  Case(int64_t t, int64_t d)
      : ids(DType::kI32, {t}),
        table(DType::kBF16, {kVocabulary, d}),
        out(DType::kBF16, {t, kStreams, d}) {
    Rng rng(1);
    for (int64_t i = 0; i < t; ++i)
      ids.as<int32_t>()[i] = static_cast<int32_t>(rng.below(kVocabulary));
    args = {.ids = ids, .table = table, .out = out};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_impls<EmbedArgs>(fmt::format("embed/{}x4x4096", t), embed,
                                     [=] { return std::make_shared<Case>(t, 4096); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
