// dsv4_xattn.h: its structs to the arguments of ops/xattn_* and ops/block_sparse_attention.

#include "dsv4_xattn.h"

#include "dsv4/base/error.h"
#include "dsv4/capi/call.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention.h"
#include "dsv4/ops/xattn/prefill/xattn_prefill.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"
#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4::capi {
namespace {

constexpr std::initializer_list<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

void require(const char* name, const dsv4_tensor& tensor) {
  DSV4_CHECK(!absent(tensor), "{} is absent", name);
}

int64_t block_of(const dsv4_prefill_batch& batch) {
  return batch.block == 0 ? 128 : batch.block;
}
int64_t stride_of(int64_t stride) {
  return stride == 0 ? 16 : stride;
}

// Views of one call. Shapes across tensors are what the op's check() compares.
class Views {
 public:
  TensorView required(const char* name, const dsv4_tensor& tensor,
                      std::initializer_list<DType> dtypes, std::initializer_list<DimArg> shape) {
    require(name, tensor);
    return tensors_.view_of(name, tensor, dtypes, shape);
  }
  TensorView optional(const char* name, const dsv4_tensor& tensor,
                      std::initializer_list<DType> dtypes, std::initializer_list<DimArg> shape) {
    return tensors_.view_of(name, tensor, dtypes, shape);
  }

  PrefillBatch batch(const dsv4_prefill_batch& batch) {
    Dim b1("b+1");
    return {.cu_q = required("cu_q", batch.cu_q, {DType::kI32}, {b1}),
            .cu_kv = required("cu_kv", batch.cu_kv, {DType::kI32}, {b1}),
            .causal = batch.non_causal == 0};
  }
  TensorView page_table(const dsv4_prefill_batch& batch) {
    Dim b("b"), n("n");
    return optional("page_table", batch.page_table, {DType::kI32}, {b, n});
  }
  TensorView q(const dsv4_tensor& q) {
    Dim t_q("t_q"), h("h_q"), d("d");
    return required("q", q, kFloats, {t_q, h, d});
  }
  // k or v: rows or pages.
  TensorView kv(const char* name, const dsv4_tensor& kv, const dsv4_prefill_batch& batch) {
    Dim t("t_kv"), h("h_kv"), d("d"), pages("pages"), page_size("page_size");
    if (absent(batch.page_table)) return required(name, kv, kFloats, {t, h, d});
    return required(name, kv, kFloats, {pages, page_size, h, d});
  }
  TensorView blocks(const char* name, const dsv4_tensor& blocks, DType dtype) {
    Dim b("b"), h("h_q"), rows("q_blocks"), columns("k_blocks");
    return required(name, blocks, {dtype}, {b, h, rows, columns});
  }
  TensorView counts(const dsv4_tensor& counts) {
    Dim b("b"), h("h_q"), rows("q_blocks");
    return required("counts", counts, {DType::kI32}, {b, h, rows});
  }
  TensorView per_head(const char* name, const dsv4_tensor& tensor) {
    Dim h("h_q");
    return optional(name, tensor, {DType::kF32}, {h});
  }
  TensorView prompt_lengths(const dsv4_tensor& tensor) {
    Dim b("b");
    return optional("prompt_lengths", tensor, {DType::kI32}, {b});
  }
  TensorView out(const dsv4_tensor& out) {
    Dim t_q("t_q"), h("h_q"), d_v("d_v");
    return required("out", out, kFloats, {t_q, h, d_v});
  }
  TensorView lse(const dsv4_tensor& lse) {
    Dim t_q("t_q"), h("h_q");
    return optional("lse", lse, {DType::kF32}, {h, t_q});
  }

  int device() const { return tensors_.device(); }

 private:
  Tensors tensors_;
};

XattnScoresArgs args_of(const dsv4_xattn_scores_params& p, Views& views) {
  return {.batch = views.batch(p.batch),
          .q = views.q(p.q),
          .k = views.kv("k", p.k, p.batch),
          .page_table = views.page_table(p.batch),
          .block = block_of(p.batch),
          .stride = stride_of(p.stride),
          .scale = p.scale,
          .sums = views.blocks("sums", p.sums, DType::kF32)};
}

XattnSelectArgs args_of(const dsv4_xattn_select_params& p, Views& views) {
  XattnSelectArgs args{.batch = views.batch(p.batch),
                       .block = block_of(p.batch),
                       .sums = views.blocks("sums", p.sums, DType::kF32),
                       .tau = views.per_head("tau", p.tau),
                       .top_k = p.top_k,
                       .min_blocks = p.min_blocks};
  if (p.max_blocks != 0) args.max_blocks = p.max_blocks;
  args.sink = p.no_sink == 0;
  args.prompt_lengths = views.prompt_lengths(p.prompt_lengths);
  args.min_length = p.min_length, args.dense_tail = p.dense_tail;
  args.lists = {.counts = views.counts(p.counts),
                .indices = views.blocks("indices", p.indices, DType::kI32)};
  return args;
}

BlockSparseAttentionArgs args_of(const dsv4_block_sparse_attention_params& p, Views& views) {
  BlockSparseAttentionArgs args{.batch = views.batch(p.batch),
                                .q = views.q(p.q),
                                .k = views.kv("k", p.k, p.batch),
                                .v = views.kv("v", p.v, p.batch),
                                .page_table = views.page_table(p.batch),
                                .block = block_of(p.batch)};
  DSV4_CHECK(absent(p.counts) == absent(p.indices), "{} is absent, but {} is not",
             absent(p.counts) ? "counts" : "indices", absent(p.counts) ? "indices" : "counts");
  if (!absent(p.counts)) {
    args.lists = {.counts = views.counts(p.counts),
                  .indices = views.blocks("indices", p.indices, DType::kI32)};
  }
  args.max_q_blocks = p.max_q_blocks;
  args.scale = p.scale;
  args.out = views.out(p.out);
  args.lse = views.lse(p.lse);
  return args;
}

XattnPrefillArgs args_of(const dsv4_xattn_prefill_params& p, Views& views) {
  XattnPrefillArgs args{.batch = views.batch(p.batch),
                        .q = views.q(p.q),
                        .k = views.kv("k", p.k, p.batch),
                        .v = views.kv("v", p.v, p.batch),
                        .page_table = views.page_table(p.batch),
                        .max_queries = p.max_queries,
                        .max_keys = p.max_keys,
                        .block = block_of(p.batch),
                        .stride = stride_of(p.stride)};
  require("tau", p.tau);
  args.tau = views.per_head("tau", p.tau);
  args.dense = p.dense != 0;
  args.prompt_lengths = views.prompt_lengths(p.prompt_lengths);
  args.min_length = p.min_length, args.dense_tail = p.dense_tail;
  if (p.workspace_limit != 0) args.workspace_limit = p.workspace_limit;
  args.scale = p.scale;
  if (p.norm != 0) args.norm = p.norm;
  args.out = views.out(p.out);
  args.lse = views.lse(p.lse);
  return args;
}

template <class Args, class Params>
int run_op(const Op<Args>& op, const Params* params, const dsv4_call* call) {
  return guarded([&] {
    Views views;
    const Args args = args_of(checked("params", params), views);
    run(call, views.device(),
        {.workspace_bytes = [&](const Context& c) { return workspace_bytes(op, c, args); },
         .run = [&](const Context& c) { op(c, args); }});
  });
}

template <class Args, class Params>
int workspace_of(const Op<Args>& op, const Params* params, const dsv4_call* call, size_t* bytes) {
  return guarded([&] {
    Views views;
    const Args args = args_of(checked("params", params), views);
    write_workspace_bytes(
        call, views.device(),
        {.workspace_bytes = [&](const Context& c) { return workspace_bytes(op, c, args); },
         .run = {}},
        bytes);
  });
}

}  // namespace
}  // namespace dsv4::capi

using namespace dsv4::capi;  // NOLINT: what follows is dsv4's, under C names

int dsv4_xattn_scores(const dsv4_xattn_scores_params* params, const dsv4_call* call) {
  return run_op(dsv4::xattn_scores, params, call);
}
int dsv4_xattn_scores_workspace_bytes(const dsv4_xattn_scores_params* params, const dsv4_call* call,
                                      size_t* bytes) {
  return workspace_of(dsv4::xattn_scores, params, call, bytes);
}

int dsv4_xattn_select(const dsv4_xattn_select_params* params, const dsv4_call* call) {
  return run_op(dsv4::xattn_select, params, call);
}
int dsv4_xattn_select_workspace_bytes(const dsv4_xattn_select_params* params, const dsv4_call* call,
                                      size_t* bytes) {
  return workspace_of(dsv4::xattn_select, params, call, bytes);
}

int dsv4_block_sparse_attention(const dsv4_block_sparse_attention_params* params,
                                const dsv4_call* call) {
  return run_op(dsv4::block_sparse_attention, params, call);
}
int dsv4_block_sparse_attention_workspace_bytes(const dsv4_block_sparse_attention_params* params,
                                                const dsv4_call* call, size_t* bytes) {
  return workspace_of(dsv4::block_sparse_attention, params, call, bytes);
}

int dsv4_xattn_prefill(const dsv4_xattn_prefill_params* params, const dsv4_call* call) {
  return run_op(dsv4::xattn_prefill, params, call);
}
int dsv4_xattn_prefill_workspace_bytes(const dsv4_xattn_prefill_params* params,
                                       const dsv4_call* call, size_t* bytes) {
  return workspace_of(dsv4::xattn_prefill, params, call, bytes);
}
