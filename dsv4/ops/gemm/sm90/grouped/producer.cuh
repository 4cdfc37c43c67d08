// The warps of the grouped kernel that copy: one lane brings codes, one lane of another warp rows
// of x. Both walk the items of the CTA by themselves.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/global_flag.cuh"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::gemm::grouped {

// A stage is a unit of each strip of the pass.
template <class Weights>
__device__ void copy_codes(const Params& p, Shared<Weights>& shared) {
  constexpr int kBytes = Weights::kSlabBytes;
  sm90::RingCursor at;
  Walk().visit_all(p, [&](const Item& item) {
    const Product& product = item.down ? p.down : p.gate_up;
    const int64_t strip_bytes = int64_t{product.chunks} * kBytes;
    const std::byte* const image = product.images.of(item.tile.expert);
    for (int first = 0; first < kTileStrips; first += Shared<Weights>::kPassStrips) {
      const int strips = max(0, min(Shared<Weights>::kPassStrips, item.strips - first));
      const std::byte* const strip_at = image + (item.first_strip + first) * strip_bytes;
      visit_chunks<Weights>(product.chunks, [&](int chunk) {
        const std::byte* const from = strip_at + chunk * kBytes;
        ptx::Mbarrier& full = shared.code_full[at.stage];
        shared.code_empty[at.stage].wait(at.phase ^ 1);
        full.expect_tx(static_cast<uint32_t>(strips * kBytes));
        full.arrive();
        const uint32_t to = ptx::smem_address(shared.codes[at.stage]);
        for (int strip = 0; strip < strips; ++strip)
          ptx::cp_async_bulk_evict_first(to + static_cast<uint32_t>(strip * kBytes),
                                         from + strip * strip_bytes, kBytes, full);
        at.next(Shared<Weights>::kCodeStages);
      });
    }
  });
}

// A stage is one or more steps of K of all columns of the tile; each step is one run of bytes. The
// factors of the columns come with the first stage of the item. Rows of h' are complete when all
// items of gate and up of the tile are done. They come before it in the order of items, and all
// CTAs run together, so they are done or under way.
template <class Weights>
__device__ void copy_x(const Params& p, Shared<Weights>& shared) {
  sm90::RingCursor at;
  int items = 0;
  Walk().visit_all(p, [&](const Item& item) {
    const Product& product = item.down ? p.down : p.gate_up;
    if (item.down) {
      ptx::wait_at_least(p.done + item.tile_index, p.gate_up.row_tiles);
      ptx::fence_proxy_async_global();
    }
    const auto bytes = static_cast<uint32_t>(item.tile.columns * column_bytes(kXForm<Weights>));
    const std::byte* const rows = product.x + item.tile.first_slot * product.slot_bytes;
    constexpr XForm kForm = kXForm<Weights>;
    constexpr int kSteps = steps_of_unit(kForm);
    const int at_once = Shared<Weights>::x_steps(item.tile.columns);
    for (int pass = 0; pass < kPasses<Weights>; ++pass) {
      visit_chunks<Weights>(product.chunks, [&](int chunk) {
        const std::byte* from = rows + int64_t{chunk} * kSteps * bytes;
#pragma unroll 1
        for (int step = 0; step < kSteps; step += at_once) {
          ptx::Mbarrier& full = shared.x_full[at.stage];
          shared.x_empty[at.stage].wait(at.phase ^ 1);
          const bool first = pass == 0 && chunk == 0 && step == 0;
          const auto factors = static_cast<uint32_t>(first ? item.tile.columns * 4 : 0);
          const uint32_t stage_bytes = static_cast<uint32_t>(at_once) * bytes;
          full.expect_tx(stage_bytes + factors);
          full.arrive();
          if (first)
            ptx::cp_async_bulk(ptx::smem_address(shared.factors[items % Shared<Weights>::kFactors]),
                               product.factors + item.tile.first_slot, factors, full);
          const uint32_t to = ptx::smem_address(shared.x[at.stage]);
          if constexpr (kForm == XForm::kE4m3) {  // steps begin on 1,024 bytes
            for (int i = 0; i < at_once; ++i)
              ptx::cp_async_bulk(to + i * step_bytes(kForm, item.tile.columns), from + i * bytes,
                                 bytes, full);
          } else {
            ptx::cp_async_bulk(to, from, stage_bytes, full);
          }
          from += stage_bytes;
          at.next(Shared<Weights>::kXStages);
        }
      });
    }
    ++items;
  });
}

}  // namespace dsv4::gemm::grouped
