// dsv4_kernels._core: arrays to the structs of the C headers, statuses to exceptions. The Python
// modules choose defaults, outputs and streams (sparse_mla.py); the library checks arguments.

#include "call.h"
#include "dsv4_sparse_mla.h"
#include "dsv4_xattn.h"
#include "tensor.h"

namespace dsv4::python {
namespace {

struct Names {
  const char *cache, *indices, *lengths;
};

// list: (cache [num_pages, page, 1, row], indices [b, s_q, n], lengths [b] or None), or None
dsv4_kv_list list_of(const Names& names, nb::handle list) {
  if (list.is_none()) return {};
  return {.pages = without_axis(tensor_of(names.cache, nb::object(list[0])), 2),
          .indices = tensor_of(names.indices, nb::object(list[1])),
          .topk_length = tensor_of(names.lengths, nb::object(list[2]))};
}

void sparse_mla(nb::handle q, nb::handle window, nb::handle compressed, nb::handle sink,
                float scale, nb::handle out, nb::handle lse, nb::handle max_logits, bool normalized,
                bool exact, bool batch_invariant, std::optional<std::string> implementation,
                uintptr_t stream, const nb::callable& allocate) {
  const dsv4_sparse_mla_params params = {
      .size = sizeof params,
      .q = tensor_of("q", q),
      .window = list_of({"k_cache", "indices", "topk_length"}, window),
      .compressed =
          list_of({"extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"}, compressed),
      .sink = tensor_of("attn_sink", sink),
      .scale = scale,
      .unnormalized = !normalized,
      .out = tensor_of("out", out),
      .lse = tensor_of("lse", lse),
      .max_logits = tensor_of("max_logits", max_logits)};
  const dsv4_call call = {.stream = reinterpret_cast<void*>(stream),
                          .implementation = implementation ? implementation->c_str() : nullptr,
                          .exact = exact,
                          .batch_invariant = batch_invariant};
  call_op(dsv4_sparse_mla, dsv4_sparse_mla_workspace_bytes, params, call, allocate);
}

// cache: [num_pages, page, 1, row]
void kv_insert(nb::handle x, nb::handle rows, nb::handle cache, nb::handle how,
               const nb::callable& allocate) {
  const dsv4_kv_insert_params params = {.size = sizeof params,
                                        .x = tensor_of("x", x),
                                        .rows = tensor_of("rows", rows),
                                        .pages = without_axis(tensor_of("k_cache", cache), 2)};
  const How chosen = how_of(how);
  call_op(dsv4_kv_insert, dsv4_kv_insert_workspace_bytes, params, chosen.call(), allocate);
}

// batch: (cu_q, cu_kv, page_table or None, causal, block)
dsv4_prefill_batch batch_of(nb::handle batch) {
  return {.cu_q = tensor_of("cu_seqlens_q", nb::object(batch[0])),
          .cu_kv = tensor_of("cu_seqlens_k", nb::object(batch[1])),
          .page_table = tensor_of("page_table", nb::object(batch[2])),
          .non_causal = !nb::cast<bool>(nb::object(batch[3])),
          .block = nb::cast<int32_t>(nb::object(batch[4]))};
}

void xattn_scores(nb::handle batch, nb::handle q, nb::handle k, int64_t stride, float scale,
                  nb::handle sums, nb::handle how, const nb::callable& allocate) {
  const dsv4_xattn_scores_params params = {.size = sizeof params,
                                           .batch = batch_of(batch),
                                           .q = tensor_of("query_states", q),
                                           .k = tensor_of("key_states", k),
                                           .stride = stride,
                                           .scale = scale,
                                           .sums = tensor_of("sums", sums)};
  const How chosen = how_of(how);
  call_op(dsv4_xattn_scores, dsv4_xattn_scores_workspace_bytes, params, chosen.call(), allocate);
}

// limits: (top_k, min_blocks, max_blocks, sink, min_length, dense_tail)
void xattn_select(nb::handle batch, nb::handle sums, nb::handle tau, nb::handle prompt_lengths,
                  nb::handle limits, nb::handle counts, nb::handle indices, nb::handle how,
                  const nb::callable& allocate) {
  const auto limit = [&](int i) { return nb::cast<int64_t>(nb::object(limits[i])); };
  const dsv4_xattn_select_params params = {
      .size = sizeof params,
      .batch = batch_of(batch),
      .sums = tensor_of("sums", sums),
      .tau = tensor_of("threshold", tau),
      .top_k = limit(0),
      .min_blocks = limit(1),
      .max_blocks = limit(2),
      .no_sink = limit(3) == 0,
      .prompt_lengths = tensor_of("prompt_lengths", prompt_lengths),
      .min_length = limit(4),
      .dense_tail = limit(5),
      .counts = tensor_of("counts", counts),
      .indices = tensor_of("indices", indices)};
  const How chosen = how_of(how);
  call_op(dsv4_xattn_select, dsv4_xattn_select_workspace_bytes, params, chosen.call(), allocate);
}

// lists: (counts, indices), or None with max_q_blocks
void block_sparse_attention(nb::handle batch, nb::handle q, nb::handle k, nb::handle v,
                            nb::handle lists, int64_t max_q_blocks, float scale, nb::handle out,
                            nb::handle lse, nb::handle how, const nb::callable& allocate) {
  dsv4_block_sparse_attention_params params = {.size = sizeof params,
                                               .batch = batch_of(batch),
                                               .q = tensor_of("q", q),
                                               .k = tensor_of("k", k),
                                               .v = tensor_of("v", v),
                                               .max_q_blocks = max_q_blocks,
                                               .scale = scale,
                                               .out = tensor_of("out", out),
                                               .lse = tensor_of("lse", lse)};
  if (!lists.is_none()) {
    params.counts = tensor_of("counts", nb::object(lists[0]));
    params.indices = tensor_of("indices", nb::object(lists[1]));
  }
  const How chosen = how_of(how);
  call_op(dsv4_block_sparse_attention, dsv4_block_sparse_attention_workspace_bytes, params,
          chosen.call(), allocate);
}

// sizes: (max_queries, max_keys, stride, dense, min_length, dense_tail)
void xattn_prefill(nb::handle batch, nb::handle q, nb::handle k, nb::handle v, nb::handle sizes,
                   nb::handle tau, nb::handle prompt_lengths, float scale, float norm,
                   nb::handle out, nb::handle lse, nb::handle how, const nb::callable& allocate) {
  const auto size = [&](int i) { return nb::cast<int64_t>(nb::object(sizes[i])); };
  const dsv4_xattn_prefill_params params = {
      .size = sizeof params,
      .batch = batch_of(batch),
      .q = tensor_of("query_states", q),
      .k = tensor_of("key_states", k),
      .v = tensor_of("value_states", v),
      .max_queries = size(0),
      .max_keys = size(1),
      .stride = size(2),
      .tau = tensor_of("threshold", tau),
      .dense = size(3) != 0,
      .prompt_lengths = tensor_of("prompt_lengths", prompt_lengths),
      .min_length = size(4),
      .dense_tail = size(5),
      .scale = scale,
      .norm = norm,
      .out = tensor_of("out", out),
      .lse = tensor_of("lse", lse)};
  const How chosen = how_of(how);
  call_op(dsv4_xattn_prefill, dsv4_xattn_prefill_workspace_bytes, params, chosen.call(), allocate);
}

}  // namespace

NB_MODULE(_core, module) {
  module.def("sparse_mla", &sparse_mla, nb::arg("q"), nb::arg("window"),
             nb::arg("compressed").none(), nb::arg("sink").none(), nb::arg("scale"), nb::arg("out"),
             nb::arg("lse").none(), nb::arg("max_logits").none(), nb::arg("normalized"),
             nb::arg("exact"), nb::arg("batch_invariant"), nb::arg("implementation").none(),
             nb::arg("stream"), nb::arg("allocate"));
  module.def("kv_insert", &kv_insert);
  module.def("xattn_scores", &xattn_scores, nb::arg("batch"), nb::arg("q"), nb::arg("k"),
             nb::arg("stride"), nb::arg("scale"), nb::arg("sums"), nb::arg("how"),
             nb::arg("allocate"));
  module.def("xattn_select", &xattn_select, nb::arg("batch"), nb::arg("sums"),
             nb::arg("tau").none(), nb::arg("prompt_lengths").none(), nb::arg("limits"),
             nb::arg("counts"), nb::arg("indices"), nb::arg("how"), nb::arg("allocate"));
  module.def("block_sparse_attention", &block_sparse_attention, nb::arg("batch"), nb::arg("q"),
             nb::arg("k"), nb::arg("v"), nb::arg("lists").none(), nb::arg("max_q_blocks"),
             nb::arg("scale"), nb::arg("out"), nb::arg("lse").none(), nb::arg("how"),
             nb::arg("allocate"));
  module.def("xattn_prefill", &xattn_prefill, nb::arg("batch"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("sizes"), nb::arg("tau"), nb::arg("prompt_lengths").none(),
             nb::arg("scale"), nb::arg("norm"), nb::arg("out"), nb::arg("lse").none(),
             nb::arg("how"), nb::arg("allocate"));
  bind_kbit(module);
  module.attr("__version__") = dsv4_version();
}

}  // namespace dsv4::python
