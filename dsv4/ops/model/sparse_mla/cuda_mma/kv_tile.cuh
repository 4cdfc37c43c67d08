// A tile of KV entries in shared memory: the packed bytes, copied asynchronously, and the bf16
// values that they decode to, exactly.
//
// Thread t of 256 has key t / 4 of the tile and every fourth 16-byte chunk of it, from t % 4 on. It
// decodes what it copied itself, except for the scales, which one thread of four copies.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/model/sparse_mla/index_lists.cuh"

namespace dsv4::sparse_mla_kernel::cuda_mma {

constexpr KvLayout kPackedLayout{};  // of the released models
constexpr int kTileKeys = 64, kTileWidth = kPackedLayout.width();
constexpr int kTileStride = kTileWidth + 8;  // of keys: ldmatrix without bank conflicts

struct alignas(16) KvTile {
  static constexpr int kEntryBytes = kPackedLayout.entry_bytes();
  static constexpr int kChunks = kEntryBytes / 16 / 4;             // of a thread
  static constexpr int kCodeChunks = kPackedLayout.nope / 16 / 4;  // those of codes come first,
  static_assert(kCodeChunks == kPackedLayout.num_scales());        // one per scale group

  bf16 keys[kTileKeys][kTileStride];
  uint8_t packed[kTileKeys][kEntryBytes];  // of the next tile
  uint8_t scales[kTileKeys][8];

  // Starts to copy entries first .. first + 63 of `entries` [count]. Past the end the last entry is
  // repeated, which avoids uninitialized bytes; its P will be 0.
  __device__ void fetch(const IndexLists& lists, const int32_t* entries, int first, int count) {
    if (first >= count) return;
    const int key = threadIdx.x / 4, part = threadIdx.x % 4;
    const int32_t listed = entries[min(first + key, count - 1)];
    const PoolPointer pool = pool_of(lists, listed);
    const EntryPlace at = find_entry(pool, listed);
    const uint8_t* entry = at.page + KvLayout{}.entry_offset(at.entry);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int offset = 16 * (4 * i + part);
      ptx::cp_async<16>(packed[key] + offset, entry + offset);
    }
    if (part == 0) {
      ptx::cp_async<8>(scales[key], at.page + KvLayout{}.scale_offset(pool.page_entries, at.entry));
    }
  }

  // packed -> keys, after the copies have completed.
  __device__ void decode() {
    const int key = threadIdx.x / 4, part = threadIdx.x % 4;
    const uint2 codes = *reinterpret_cast<const uint2*>(scales[key]);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = 4 * i + part;
      const uint4 bytes = *reinterpret_cast<const uint4*>(packed[key] + 16 * chunk);
      if (i < kCodeChunks) {
        const __nv_bfloat162 scale =
            decode_scale((i < 4 ? codes.x : codes.y) >> (i % 4 * 8) & 0xff);
        auto* to = reinterpret_cast<uint4*>(keys[key] + 16 * chunk);
        to[0] = decode_eight(bytes.x, bytes.y, scale);
        to[1] = decode_eight(bytes.z, bytes.w, scale);
      } else {
        const int column = kPackedLayout.nope + 8 * (chunk - 4 * kCodeChunks);
        *reinterpret_cast<uint4*>(keys[key] + column) = bytes;
      }
    }
  }

 private:
  // 2^(code - 127) in bf16, in both halves.
  __device__ static __nv_bfloat162 decode_scale(uint32_t code) {
    const uint32_t bits = code == 255 ? 0x7fc0 : code == 0 ? 0x0040 : code << 7;
    return ptx::as_bf162(bits | bits << 16);
  }

  // Two e4m3 codes times scale.
  __device__ static uint32_t decode_pair(uint32_t codes, __nv_bfloat162 scale) {
    const __half2 values =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffff), __NV_E4M3);
    return ptx::as_bits(__hmul2(__float22bfloat162_rn(__half22float2(values)), scale));
  }

  __device__ static uint4 decode_eight(uint32_t low, uint32_t high, __nv_bfloat162 scale) {
    return {decode_pair(low, scale), decode_pair(low >> 16, scale), decode_pair(high, scale),
            decode_pair(high >> 16, scale)};
  }
};

}  // namespace dsv4::sparse_mla_kernel::cuda_mma
