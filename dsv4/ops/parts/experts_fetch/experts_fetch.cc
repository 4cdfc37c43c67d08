#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/experts_fetch/fetch_beside.h"

namespace dsv4::experts_fetch_kernel {

// Two launches: one warp decides, a few CTAs copy, on a second stream where the call has one.
// Images at multiples of 16 bytes. Copies reach 51 GB/s alone with two CTAs or more, on an H200; in
// decode steps that wait for them the link brings 21 to 49.
DSV4_IMPL(ExpertsFetchArgs, sm90)
DSV4_IMPL(ExpertsFetchArgs, cpu)

constexpr Impl<ExpertsFetchArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90", Arch::kSm90, true, sm90::reject, sm90::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<ExpertsFetchArgs>, cpu::run},
};

LayerPlaces layer_of(const ExpertsFetchArgs& args) {
  return {.experts = static_cast<int>(args.homes.dim(0)),
          .fixed = static_cast<int>(args.fixed),
          .slots = static_cast<int>(args.memory.dim(0) - args.fixed),
          .transient = static_cast<int>(args.transient.dim(0)),
          .uses = reinterpret_cast<ExpertUse*>(args.uses.data),
          .place_of = args.place_of.as<int32_t>(),
          .expert_in = args.expert_in.as<int32_t>(),
          .step = reinterpret_cast<uint32_t*>(args.step.data),
          .totals = args.totals.as<int64_t>()};
}

}  // namespace dsv4::experts_fetch_kernel

namespace dsv4 {
namespace {

void check(const ExpertsFetchArgs& args) {
  Dim t("t"), k("k"), e("e"), m("m"), r("r"), bytes("bytes");
  expect("experts", args.experts, {DType::kI32}, {t, k});
  expect("homes", args.homes, {DType::kI64}, {e});
  expect("memory", args.memory, {DType::kU8}, {m, bytes});
  expect("transient", args.transient, {DType::kU8}, {r, bytes});
  expect("places", args.places, {DType::kI64}, {e});
  expect("uses", args.uses, {DType::kI32}, {e, 2});
  expect("place_of", args.place_of, {DType::kI32}, {e});
  expect("expert_in", args.expert_in, {DType::kI32}, {*m + *r});
  expect("step", args.step, {DType::kI32}, {1});
  expect("totals", args.totals, {DType::kI64}, {e});
  expect("counters", args.counters, {DType::kI64}, {4});
  DSV4_CHECK(args.experts.is_contiguous() && args.uses.is_contiguous(),
             "experts and uses of rows at distances of {} and {}", args.experts.row_stride(),
             args.uses.row_stride());
  if (!args.turn_of.empty()) expect("turn_of", args.turn_of, {DType::kI32}, {e});
  if (args.beside != nullptr) {
    const FetchLists& lists = args.beside->lists();
    expect("moves", lists.moves, {DType::kI32}, {e, 2});
    expect("count", lists.count, {DType::kI32}, {1});
    DSV4_CHECK(!args.turn_of.empty() && args.turn_of.data == lists.turn_of.data,
               "copies beside the turns of another list");
  }
  DSV4_CHECK(args.fixed >= 0 && args.fixed <= *m, "{} fixed of {} places", args.fixed, *m);
}

// Which experts are in their places is not known before the call: as if none were.
Cost cost(const ExpertsFetchArgs& args) {
  const int64_t chosen = std::min(args.experts.numel(), args.homes.dim(0));
  return {.bytes = static_cast<double>(args.experts.bytes() + 2 * chosen * args.memory.dim(1))};
}

}  // namespace

constinit const Op<ExpertsFetchArgs> experts_fetch{"experts_fetch", experts_fetch_kernel::kTable,
                                                   check, cost};

}  // namespace dsv4
