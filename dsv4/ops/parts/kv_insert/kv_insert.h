// Writes cache rows: attention entries and indexer keys (docs/spec/dsv4.md 4.1 step 7, 5.4, 12).
//
// index_insert of NaN or infinity into a packed pool, whose codes are numbers only, throws
// NotFinite on the CPU; on a device, which cannot throw, the key is then undefined.
//
// Writing to a packed pool quantizes (V4 rows: S8 over groups of 64 nope dims; V3.2 rows: e4m3 over
// groups of 128 with f32 scales, formats/kv_layout.h; S4 over groups of 32 index dims); this is the
// only official rounding point. A plain pool stores f32. Attention reads plain bf16 rows, but this
// op does not write them and throws.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct KvInsertArgs {
  ConstTensorView x;     // [n, width] f32|bf16
  ConstTensorView rows;  // [n] I32 row ids, distinct; negative: skip
  KvPool pool;
};

struct IndexInsertArgs {
  ConstTensorView x;     // [n, width] f32|bf16
  ConstTensorView rows;  // [n] I32 row ids, distinct; negative: skip
  IndexPool pool;
};

extern const Op<KvInsertArgs> kv_insert;

extern const Op<IndexInsertArgs> index_insert;

}  // namespace dsv4
