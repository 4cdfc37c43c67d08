#include "dsv4/ops/xattn/attention/prefill_batch.h"

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void check_ascending(const char* name, const ConstTensorView& lengths) {
  const int* cu = lengths.as<int>();
  DSV4_CHECK(cu[0] == 0, "{}[0] is {}, not 0", name, cu[0]);
  for (int64_t i = 0; i + 1 < lengths.dim(0); ++i) {
    DSV4_CHECK(cu[i] <= cu[i + 1], "{}[{}] is {}, less than {} before it", name, i + 1, cu[i + 1],
               cu[i]);
  }
}

}  // namespace

void check_lengths(const PrefillBatch& batch, int64_t q_rows, int64_t kv_rows) {
  check_ascending("cu_q", batch.cu_q);
  check_ascending("cu_kv", batch.cu_kv);
  const int64_t b = batch.size();
  const int last_q = batch.cu_q.as<int>()[b], last_kv = batch.cu_kv.as<int>()[b];
  DSV4_CHECK(last_q == q_rows, "cu_q ends at {}, q has {} rows", last_q, q_rows);
  DSV4_CHECK(kv_rows < 0 || last_kv == kv_rows, "cu_kv ends at {}, k has {} rows", last_kv,
             kv_rows);
}

KvAddress kv_address(const ConstTensorView& kv, const ConstTensorView& page_table) {
  if (page_table.empty()) return {.row_stride = kv.stride[0], .head_stride = kv.stride[1]};
  return {.row_stride = kv.stride[1],
          .head_stride = kv.stride[2],
          .page_stride = kv.stride[0],
          .table = page_table.as<int>(),
          .table_stride = page_table.stride[0],
          .page_size = static_cast<int>(kv.dim(1))};
}

}  // namespace dsv4
