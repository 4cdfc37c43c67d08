#include "dsv4/ops/model/embed/embed.h"

#include "dsv4/base/error.h"

namespace dsv4::embed_kernel {

DSV4_IMPL(EmbedArgs, cuda)
DSV4_IMPL(EmbedArgs, cpu)

constexpr Impl<EmbedArgs> kEmbed[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<EmbedArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<EmbedArgs>, cpu::run},
};

}  // namespace dsv4::embed_kernel

namespace dsv4 {
namespace {

void check(const EmbedArgs& args) {
  Dim t("t"), v("v"), m("m"), d("d");
  expect("ids", args.ids, {DType::kI32}, {t});
  expect("table", args.table, {DType::kF32, DType::kBF16, DType::kF16}, {v, d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, m, d});
  DSV4_CHECK(args.out.is_contiguous(), "out must be contiguous, got {}", to_string(args.out));
}

Cost cost(const EmbedArgs& args) {
  const int64_t rows = args.ids.dim(0) * args.table.dim(1) * item_bytes(args.table.dtype);
  return {.bytes = static_cast<double>(rows + args.ids.bytes() + args.out.bytes())};
}

}  // namespace

constinit const Op<EmbedArgs> embed{"embed", embed_kernel::kEmbed, check, cost};

}  // namespace dsv4
