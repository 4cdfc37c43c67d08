// dsv4_kernels._core: arrays to dsv4_sparse_mla_params, statuses to exceptions. Defaults, outputs
// and streams are the Python modules' business (sparse_mla.py).

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "dsv4_sparse_mla.h"
#include "view.h"

namespace dsv4::python {
namespace {

namespace nb = nanobind;

[[noreturn]] void refuse(const std::string& line) {
  throw nb::value_error(line.c_str());
}

void check_status(int status) {
  if (status == DSV4_OK) return;
  const char* line = dsv4_last_error();
  if (status == DSV4_INVALID_ARGUMENT || status == DSV4_UNSUPPORTED) throw nb::value_error(line);
  PyErr_SetString(status == DSV4_OUT_OF_ROOM ? PyExc_MemoryError : PyExc_RuntimeError, line);
  throw nb::python_error();
}

// The arrays of one call agree on a device.
class Arrays {
 public:
  View operator()(const char* name, nb::handle array, int rank) {
    const View view = view_of(name, array);
    if (view.rank() != rank) {
      refuse(std::string(name) + ": want " + std::to_string(rank) + " axes, got " + view.text());
    }
    if (rank > 0 && view.stride(rank - 1) != 1) {
      refuse(std::string(name) + ": want a contiguous last axis, got stride " +
             std::to_string(view.stride(rank - 1)) + " of " + view.text());
    }
    if (first_.empty()) first_ = name, device_ = view.device;
    if (view.device != device_) {
      refuse(std::string(name) + " is " + view.text() + ", " + first_ + " is on " +
             (device_ < 0 ? "the host" : "cuda:" + std::to_string(device_)));
    }
    return view;
  }
  int device() const { return device_; }

 private:
  std::string first_;
  int device_ = -1;
};

void want(const char* name, const View& view, Kind kind, const char* kind_name) {
  if (view.kind != kind) refuse(std::string(name) + ": want " + kind_name + ", got " + view.text());
}

void want_extent(const char* name, const View& view, int axis, int64_t extent, const char* what) {
  if (view.dim(axis) == extent) return;
  refuse(std::string(name) + ": want " + what + " = " + std::to_string(extent) + " on axis " +
         std::to_string(axis) + ", got " + view.text());
}

int float_type(const char* name, const View& view) {
  if (view.kind != Kind::kF32 && view.kind != Kind::kBF16) {
    refuse(std::string(name) + ": want bfloat16 or float32, got " + view.text());
  }
  return view.kind == Kind::kF32 ? DSV4_F32 : DSV4_BF16;
}

// cache: [num_pages, page, 1, 584 | 656] bytes, or [num_pages, page, 1, d] bf16|f32
void set_pages(const char* name, const View& cache, dsv4_kv_list* list) {
  const int64_t width = cache.dim(3);
  want_extent(name, cache, 2, 1, "h_kv");
  if (cache.kind == Kind::kByte) {
    if (width != 584 && width != 656) {
      refuse(std::string(name) + ": want rows of 584 (V4) or 656 (V3.2) bytes, got " +
             cache.text());
    }
    list->format = width == 584 ? DSV4_ROWS_V4 : DSV4_ROWS_V32;
  } else if (cache.kind != Kind::kF32 && cache.kind != Kind::kBF16) {
    refuse(std::string(name) + ": want bytes (FP8, int8, uint8), bfloat16 or float32, got " +
           cache.text());
  } else {
    list->format = float_type(name, cache) == DSV4_F32 ? DSV4_ROWS_F32 : DSV4_ROWS_BF16;
  }
  if (cache.stride(1) != width) {
    refuse(std::string(name) + ": want the rows of a page side by side, got a stride of " +
           std::to_string(cache.stride(1)) + " on axis 1 of " + cache.text());
  }
  const int64_t item = cache.kind == Kind::kByte ? 1 : cache.kind == Kind::kF32 ? 4 : 2;
  list->pages = cache.data;
  list->num_pages = cache.dim(0);
  list->page_entries = static_cast<int32_t>(cache.dim(1));
  list->page_stride = cache.stride(0) * item;
}

struct Names {
  const char *cache, *rows, *lengths;
};

// list: (cache, rows [b, s_q, n] int32, lengths [b] int32 or None), or None
void set_list(const Names& names, nb::handle list, Arrays& arrays, const dsv4_sparse_mla_params& p,
              dsv4_kv_list* out) {
  if (list.is_none()) return;
  const View cache = arrays(names.cache, nb::object(list[0]), 4);
  if (cache.dim(0) == 0) return;  // every id is beyond it, and there is no pointer to pass
  set_pages(names.cache, cache, out);
  const View rows = arrays(names.rows, nb::object(list[1]), 3);
  want(names.rows, rows, Kind::kI32, "int32");
  want_extent(names.rows, rows, 0, p.b, "b");
  want_extent(names.rows, rows, 1, p.s_q, "s_q");
  out->rows = static_cast<const int32_t*>(rows.data);
  out->n = rows.dim(2);
  out->rows_stride[0] = rows.stride(0);
  out->rows_stride[1] = rows.stride(1);
  const nb::object lengths_array = list[2];
  if (lengths_array.is_none()) return;
  const View lengths = arrays(names.lengths, lengths_array, 1);
  want(names.lengths, lengths, Kind::kI32, "int32");
  want_extent(names.lengths, lengths, 0, p.b, "b");
  out->lengths = static_cast<const int32_t*>(lengths.data);
}

// sums: [b, h, s_q] f32
void set_sums(const char* name, nb::handle array, Arrays& arrays, float** data, int64_t* strides) {
  if (array.is_none()) return;
  const View view = arrays(name, array, 3);
  want(name, view, Kind::kF32, "float32");
  *data = static_cast<float*>(view.data);
  strides[0] = view.stride(0), strides[1] = view.stride(1);
}

struct Options {
  bool normalized, exact, batch_invariant;
  std::optional<std::string> implementation;
};

// q [b, s_q, h, d], out [b, s_q, h, d_v], sink [h] or None
dsv4_sparse_mla_params make_params(nb::handle q_array, nb::handle window, nb::handle compressed,
                                   nb::handle sink_array, float scale, nb::handle out_array,
                                   nb::handle lse, nb::handle max_logits, const Options& options) {
  dsv4_sparse_mla_params p = {};
  p.size = sizeof p;
  Arrays arrays;
  const View q = arrays("q", q_array, 4), out = arrays("out", out_array, 4);
  p.device = q.device < 0 ? DSV4_HOST : q.device;
  p.exact = options.exact;
  p.batch_invariant = options.batch_invariant;
  p.implementation = options.implementation ? options.implementation->c_str() : nullptr;
  p.b = q.dim(0), p.s_q = q.dim(1), p.h = q.dim(2), p.d = q.dim(3), p.d_v = out.dim(3);
  p.q = q.data;
  p.q_dtype = float_type("q", q);
  p.out = out.data;
  p.out_dtype = float_type("out", out);
  for (int axis = 0; axis < 3; ++axis) {
    p.q_stride[axis] = q.stride(axis);
    p.out_stride[axis] = out.stride(axis);
  }
  set_list({"k_cache", "indices", "topk_length"}, window, arrays, p, &p.window);
  set_list({"extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"}, compressed, arrays,
           p, &p.compressed);
  if (!sink_array.is_none()) {
    const View sink = arrays("attn_sink", sink_array, 1);
    want("attn_sink", sink, Kind::kF32, "float32");
    want_extent("attn_sink", sink, 0, p.h, "h");
    p.sink = static_cast<const float*>(sink.data);
  }
  p.scale = scale;
  p.unnormalized = !options.normalized;
  set_sums("lse", lse, arrays, &p.lse, p.lse_stride);
  set_sums("max_logits", max_logits, arrays, &p.max_logits, p.max_logits_stride);
  return p;
}

// allocate(bytes) returns a [bytes] uint8 array on q's device that stays valid for the stream.
void sparse_mla(nb::handle q, nb::handle window, nb::handle compressed, nb::handle sink,
                float scale, nb::handle out, nb::handle lse, nb::handle max_logits, bool normalized,
                bool exact, bool batch_invariant, std::optional<std::string> implementation,
                uintptr_t stream, const nb::callable& allocate) {
  const Options options{normalized, exact, batch_invariant, std::move(implementation)};
  const dsv4_sparse_mla_params p =
      make_params(q, window, compressed, sink, scale, out, lse, max_logits, options);
  size_t bytes = 0;
  check_status(dsv4_sparse_mla_workspace_bytes(&p, &bytes));
  nb::object block = nb::none();
  void* workspace = nullptr;
  if (bytes > 0) {
    block = allocate(bytes);
    const View view = view_of("workspace", block);
    workspace = view.data;
    bytes = static_cast<size_t>(view.dim(0));
  }
  int status = DSV4_OK;
  {
    const nb::gil_scoped_release release;
    status = dsv4_sparse_mla(&p, workspace, bytes, reinterpret_cast<void*>(stream));
  }
  check_status(status);
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
