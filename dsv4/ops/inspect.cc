#include "dsv4/ops/inspect.h"

#include "dsv4/ops/compressor/compressor.h"
#include "dsv4/ops/dequantize/dequantize.h"
#include "dsv4/ops/embed/embed.h"
#include "dsv4/ops/experts/experts.h"
#include "dsv4/ops/indexer/indexer.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/ops/kbit/repack_kbit.h"
#include "dsv4/ops/kv_insert/kv_insert.h"
#include "dsv4/ops/linear/linear.h"
#include "dsv4/ops/mhc/mhc.h"
#include "dsv4/ops/norm/norm.h"
#include "dsv4/ops/quant/quant.h"
#include "dsv4/ops/rope/rope.h"
#include "dsv4/ops/router/router.h"
#include "dsv4/ops/sample/sample.h"
#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

std::vector<OpRow> all_op_rows() {
  std::vector<OpRow> rows;
  const auto add = [&](std::string_view op, auto table) {
    for (const auto& row : table) rows.push_back({op, row.name, row.arch, row.batch_invariant});
  };
  add("embed", embed_rows());
  add("rms_norm", rms_norm_rows());
  add("head_norm", head_norm_rows());
  add("rope", rope_rows());
  add("quantize_q8", quantize_q8_rows());
  add("fake_quant", fake_quant_rows());
  add("hadamard", hadamard_rows());
  add("quantize_kbit", quantize_kbit_rows());
  add("dequantize", dequantize_rows());
  add("repack_kbit", repack_kbit_rows());
  add("linear", linear_rows());
  add("hc_pre", hc_pre_rows());
  add("hc_post", hc_post_rows());
  add("hc_head", hc_head_rows());
  add("kv_insert", kv_insert_rows());
  add("index_insert", index_insert_rows());
  add("compressor", compressor_rows());
  add("index_scores", index_scores_rows());
  add("top_k", top_k_rows());
  add("sparse_mla", sparse_mla_rows());
  add("router", router_rows());
  add("experts", experts_rows());
  add("sample", sample_rows());
  return rows;
}

}  // namespace dsv4
