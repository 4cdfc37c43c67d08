// The kernels of attention_out/sm90_few on the emulator, against the oracle of attention_out: wo_a
// with o as it is and stored in f16 before, which have the same bits; then wo_b.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/ops/gemm/x/stored_f16.cuh"
#include "dsv4/ops/model/attention_out/attention_out_case.h"
#include "dsv4/ops/model/attention_out/sm90_few/launch.cuh"
#include "tests/emulator/runs.h"
#include "tests/emulator/small_m_case.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace few = attention_out_kernel::sm90_few;
using test::Arena;
using test::launch_of;
using test::make_map;
using test::product_kernel;

// The kernel of wo_a, whose epilogue quantizes u.
emulator::Kernel wo_a_kernel(const AttentionOutArgs& args, const gemm::Activations& o,
                             const TensorView& codes, const TensorView& scales, int num_sms) {
  const gemm::Product p = few::product_of_wo_a(args, o);
  const gemm::Shape shape = few::shape_of_wo_a(p);
  const gemm::Split split = gemm::make_split(shape, num_sms);
  const int tokens = gemm::tile_tokens(shape);
  emulator::Kernel kernel{launch_of(shape, split, tokens), {}};
  gemm::with_tokens<gemm::Format::kFp8Bf16>(tokens, [&](auto config) {
    kernel.body = [params = few::make_params(p, split, tokens, codes, scales, make_map)] {
      gemm::small_m_kernel<decltype(config), few::Params, few::StoreQ8>(params);
    };
  });
  return kernel;
}

// The kernel that stores o for it.
emulator::Kernel store_o_kernel(const gemm::StoreF16Params& p) {
  return {{.grid = static_cast<int>(ceil_div(p.groups, gemm::kStoreF16Groups)),
           .block = gemm::kStoreF16Threads,
           .pdl = true,
           .resident = 2},
          [p] { gemm::store_f16_kernel(p); }};
}

// t tokens of 4 heads in 2 groups of 256 rows; o as it is, or stored in f16 before.
void check_attention_out(int64_t t, int num_sms, bool stored = false, int64_t head = 64) {
  SCOPED_TRACE(t);
  Arena arena;
  Rng rng(static_cast<uint64_t>(t));
  const test::StoredAs fp8{WeightFormat::kFp8Block};
  AttentionOutArgs args = test::random_attention_out(arena, rng, {t, 4, head, 2, 100});
  args.wo_a = test::random_weight(arena, rng, fp8, 2 * 256, 2 * head);
  args.wo_b = test::random_weight(arena, rng, fp8, 100, 2 * 256);
  const TensorView codes = arena.output(DType::kE4M3, {t, 512});
  const TensorView scales = arena.output(DType::kE8M0, {t, 4});
  const gemm::StoredF16 o =
      few::make_stored_o(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return arena.output(dtype, shape);
      });
  const std::vector<double> want = attention_out_oracle({}, args);
  const gemm::Product wo_b{
      .in = {.x = codes, .x_scale = scales}, .weight = args.wo_b, .out = args.y};
  const gemm::Activations as_is{.x = few::rows_of_o(args)};
  std::vector<emulator::Kernel> kernels{
      emulator::touching({args.o}),
      wo_a_kernel(args, stored ? o.activations() : as_is, codes, scales, num_sms),
      product_kernel(wo_b, num_sms)};
  if (stored)
    kernels.insert(kernels.begin() + 1, store_o_kernel(gemm::make_store_f16_params(args.o, o)));
  emulator::check_runs(
      arena, 4, [&](int seed) { emulator::launch_stream(kernels, static_cast<uint64_t>(seed)); },
      // As in attention_out_test.cc.
      [&] {
        EXPECT_EQ(test::compare(args.y, want, {.ulps = 1.01, .rel = 0.02, .cosine = 5e-6}), "");
      });
  if (!stored) return;
  // u has the bits that it has when every CTA converts o.
  const auto bytes = [](const TensorView& view) {
    return std::vector<std::byte>(view.data, view.data + view.bytes());
  };
  const std::vector<std::byte> u = bytes(codes), of_groups = bytes(scales);
  emulator::launch_stream({wo_a_kernel(args, as_is, codes, scales, num_sms)}, 1);
  EXPECT_EQ(bytes(codes), u);
  EXPECT_EQ(bytes(scales), of_groups);
}

TEST(AttentionOutEmulated, OAsItIs) {
  check_attention_out(1, 4);
  check_attention_out(7, 1);
  check_attention_out(19, 1);
}
// Tiles of 16 tokens with all of o in shared memory, and of 48 and 64 that take it through the
// ring; the last of several clusters.
TEST(AttentionOutEmulated, StoredO) {
  check_attention_out(9, 1, true);
  check_attention_out(25, 1, true, 128);
  check_attention_out(33, 1, true, 128);
  check_attention_out(48, 4, true);
  check_attention_out(63, 1, true, 320);
  check_attention_out(64, 4, true, 192);
}

}  // namespace
}  // namespace dsv4
