// dsv4_kernels._core: arrays to the structs of the C headers, statuses to exceptions. The Python
// modules choose defaults, outputs and streams (sparse_mla.py); the library checks arguments.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "dsv4_sparse_mla.h"
#include "tensor.h"

namespace dsv4::python {
namespace {

namespace nb = nanobind;

void check_status(int status) {
  if (status == DSV4_OK) return;
  const char* line = dsv4_last_error();
  if (status == DSV4_INVALID_ARGUMENT || status == DSV4_UNSUPPORTED) throw nb::value_error(line);
  PyErr_SetString(status == DSV4_OUT_OF_ROOM ? PyExc_MemoryError : PyExc_RuntimeError, line);
  throw nb::python_error();
}

// Queries the workspace size, gets memory from allocate(bytes), which returns a [bytes] uint8 array
// that stays valid for the stream, and calls without the GIL.
template <class Params>
void call_op(int (*run)(const Params*, const dsv4_call*),
             int (*workspace_bytes)(const Params*, const dsv4_call*, size_t*), const Params& params,
             dsv4_call call, const nb::callable& allocate) {
  call.size = sizeof call;
  size_t bytes = 0;
  check_status(workspace_bytes(&params, &call, &bytes));
  nb::object block = nb::none();
  if (bytes > 0) {
    block = allocate(bytes);
    const dsv4_tensor workspace = tensor_of("workspace", block);
    call.workspace = workspace.data;
    call.workspace_bytes = static_cast<size_t>(workspace.shape[0]);
  }
  int status = DSV4_OK;
  {
    const nb::gil_scoped_release release;
    status = run(&params, &call);
  }
  check_status(status);
}

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

}  // namespace

NB_MODULE(_core, module) {
  module.def("sparse_mla", &sparse_mla, nb::arg("q"), nb::arg("window"),
             nb::arg("compressed").none(), nb::arg("sink").none(), nb::arg("scale"), nb::arg("out"),
             nb::arg("lse").none(), nb::arg("max_logits").none(), nb::arg("normalized"),
             nb::arg("exact"), nb::arg("batch_invariant"), nb::arg("implementation").none(),
             nb::arg("stream"), nb::arg("allocate"));
  module.attr("__version__") = dsv4_version();
}

}  // namespace dsv4::python
