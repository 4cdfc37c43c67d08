#include "dsv4/ops/inspect.h"

#include "dsv4/ops/block_sparse_attention/block_sparse_attention.h"
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
#include "dsv4/ops/xattn_prefill/xattn_prefill.h"
#include "dsv4/ops/xattn_scores/xattn_scores.h"
#include "dsv4/ops/xattn_select/xattn_select.h"

namespace dsv4 {

std::vector<OpImpl> all_op_impls() {
  std::vector<OpImpl> impls;
  const auto add = [&](const auto& op) {
    for (const ImplInfo& impl : op.impls)
      impls.push_back({op.name, impl.name, impl.arch, impl.batch_invariant});
  };
  add(embed);
  add(rms_norm);
  add(head_norm);
  add(rope);
  add(quantize_q8);
  add(fake_quant);
  add(hadamard);
  add(quantize_kbit);
  add(dequantize);
  add(repack_kbit);
  add(linear);
  add(hc_pre);
  add(hc_post);
  add(hc_head);
  add(kv_insert);
  add(index_insert);
  add(compressor);
  add(index_scores);
  add(top_k);
  add(sparse_mla);
  add(router);
  add(experts);
  add(sample);
  add(block_sparse_attention);
  add(xattn_scores);
  add(xattn_select);
  add(xattn_prefill);
  return impls;
}

}  // namespace dsv4
