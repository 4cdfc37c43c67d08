// Rows of paged pools, packed by the first warps of a CTA (all of them unless said): the bytes of
// pack_kv_entry() and pack_index_key(). Each warp packs one of the groups that share a scale.

#pragma once

#include "dsv4/device/quantize.cuh"
#include "dsv4/ops/pools.h"

namespace dsv4 {

// Where rows go, packed or plain.
template <class Layout>
struct PackedPages {
  std::byte* data = nullptr;
  int64_t stride = 0;  // bytes from one page to the next
  Layout layout{};
  int page_entries = 1;

  PackedPages() = default;
  template <class Pool>
  explicit PackedPages(const Pool& pool)
      : data(pool.pages.data),
        stride(pool.pages.row_stride() * item_bytes(pool.pages.dtype)),
        layout(pool.layout),
        page_entries(pool.page_entries) {}
  template <class T>
  __device__ T* page(int row) const {
    return reinterpret_cast<T*>(data + row / page_entries * stride);
  }
  __device__ int entry(int row) const { return row % page_entries; }
};

struct Columns {
  int begin, count;
};

__device__ inline int warps_of_cta() {
  return static_cast<int>(blockDim.x) / kWarp;
}

// Packs `columns` of a row, which are whole groups or reach to its end; x: all columns of the row.
template <class T>
__device__ void pack_kv_columns(const PackedPages<KvLayout>& pages, int row, const T* x,
                                Columns columns, int warps = warps_of_cta()) {
  const KvLayout layout = pages.layout;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int end = columns.begin + columns.count;
  auto* page = pages.template page<uint8_t>(row);
  uint8_t* codes = page + layout.entry_offset(pages.entry(row));
  uint8_t* scales = page + layout.scale_offset(pages.page_entries, pages.entry(row));
  const int last =
      end == layout.width() ? static_cast<int>(layout.scale_bytes()) : end / layout.group();
  for (int g = columns.begin / layout.group() + warp; g < last; g += warps) {
    const int begin = g * layout.group();
    uint8_t scale = 0;  // the padding
    if (g < layout.num_scales())
      scale = group_quantize_q8<1>(GroupLanes{}, x + begin, layout.group(), codes + begin);
    if (lane == 0) scales[g] = scale;
  }
  // Entries have an even number of bytes, so bf16 values are aligned.
  auto* tail = reinterpret_cast<uint16_t*>(codes + layout.nope);
  for (int c = static_cast<int>(threadIdx.x); c < end - layout.nope; c += warps * kWarp)
    tail[c] = f32_to_bf16(to_float(x[layout.nope + c]));
}

// A V3.2 row. A lane has four of a group's 128 values; scales may be at odd addresses.
template <class T>
__device__ void pack_v32_row(const PackedPages<KvLayout>& pages, int row, const T* x) {
  constexpr int kValues = 4;
  const KvLayout layout = pages.layout;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, entry = pages.entry(row);
  auto* page = pages.template page<uint8_t>(row);
  uint8_t* codes = page + layout.entry_offset(entry);
  uint8_t* scales = page + layout.scale_offset(pages.page_entries, entry);
  for (int g = static_cast<int>(threadIdx.x) / kWarp; g < layout.num_scales();
       g += warps_of_cta()) {
    const int at = g * layout.group() + lane;
    float value[kValues], most = 0;
    for (int i = 0; i < kValues; ++i) {
      value[i] = to_float(x[at + i * kWarp]);
      most = fmaxf(most, fabsf(value[i]));
    }
    const float ratio = warp_max(most) / 448.f;
    const uint8_t scale = pow2ceil_ue8m0(ratio < 1e-4f ? 1e-4f : ratio);
    for (int i = 0; i < kValues; ++i)
      codes[at + i * kWarp] = f32_to_e4m3(value[i] * inverse_scale(scale));
    const uint32_t bits = std::bit_cast<uint32_t>(ue8m0_to_f32(scale));
    if (lane < 4) scales[4 * g + lane] = static_cast<uint8_t>(bits >> (8 * lane));
  }
  auto* tail = reinterpret_cast<uint16_t*>(page + layout.rope_offset(entry));
  for (int c = static_cast<int>(threadIdx.x); c < layout.rope; c += warps_of_cta() * kWarp)
    tail[c] = f32_to_bf16(to_float(x[layout.nope + c]));
}

// x: the row.
template <class T>
__device__ void pack_index_row(const PackedPages<IndexLayoutFp4>& pages, int row, const T* x,
                               int warps = warps_of_cta()) {
  const IndexLayoutFp4 layout = pages.layout;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* page = pages.template page<uint8_t>(row);
  uint8_t* pairs = page + layout.code_offset(pages.entry(row));
  uint8_t* scales = page + layout.scale_offset(pages.page_entries, pages.entry(row));
  static_assert(IndexLayoutFp4::kGroup == kWarp);  // one element per lane
  for (int g = static_cast<int>(threadIdx.x) / kWarp; g < layout.scale_bytes(); g += warps) {
    const int at = g * kWarp + lane;
    const float value = to_float(x[at]);
    const uint8_t scale = q4_scale(warp_max(fmaxf(0.f, fabsf(value))));
    const uint8_t code = f32_to_e2m1(value * inverse_scale(scale));
    const auto next = static_cast<uint8_t>(__shfl_xor_sync(~0u, unsigned{code}, 1));
    if (lane % 2 == 0) pairs[at / 2] = e2m1_pair(code, next);
    if (lane == 0) scales[g] = scale;
  }
}

}  // namespace dsv4
