// dsv4_sparse_mla.h: its structs to views, and calls of ops/sparse_mla.

#include <initializer_list>

#include "dsv4/base/error.h"
#include "dsv4/capi/error_line.h"
#include "dsv4/capi/on_device.h"
#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4::capi {
namespace {

using Params = dsv4_sparse_mla_params;
using Extents = std::initializer_list<int64_t>;

DType dtype_of(const char* name, int32_t dtype) {
  DSV4_CHECK(dtype == DSV4_F32 || dtype == DSV4_BF16, "{}_dtype={}: want DSV4_F32 or DSV4_BF16",
             name, dtype);
  return dtype == DSV4_F32 ? DType::kF32 : DType::kBF16;
}

// strides: of all axes but the last.
TensorMeta strided(DType dtype, Extents shape, const int64_t* strides) {
  TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  for (int axis = 0; axis + 1 < meta.rank; ++axis) {
    const auto i = static_cast<size_t>(axis);
    meta.stride[i] = strides[axis];
  }
  return meta;
}

// The caller's constness is what the struct says; views of inputs are const again in the args.
template <class Pointer>
TensorView view(const TensorMeta& meta, Pointer* data) {
  return {meta, reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<Pointer>*>(data))};
}

KvLayout layout_of(int32_t format, int64_t d) {
  if (format == DSV4_ROWS_V4) return {};
  if (format == DSV4_ROWS_V32) return kV32Layout;
  return {.nope = static_cast<int>(d), .rope = 0};
}

DType pages_dtype(const char* name, int32_t format) {
  switch (format) {
    case DSV4_ROWS_V4:
    case DSV4_ROWS_V32:
      return DType::kU8;
    case DSV4_ROWS_F32:
      return DType::kF32;
    case DSV4_ROWS_BF16:
      return DType::kBF16;
    default:
      fail(ErrorCode::kInvalidArgument, "{}.format={}: want one of dsv4_rows", name, format);
  }
}

KvPool pool_of(const char* name, const dsv4_kv_list& list, int64_t d) {
  KvPool pool{.layout = layout_of(list.format, d), .page_entries = list.page_entries};
  const DType dtype = pages_dtype(name, list.format);
  DSV4_CHECK(list.page_entries > 0, "{}.page_entries={}", name, list.page_entries);
  const int64_t width = pool.layout.width();
  const int64_t page =
      dtype == DType::kU8 ? pool.layout.page_bytes(list.page_entries) : list.page_entries * width;
  // What items of the page the kernels read whole: rows at odd places would fault.
  const int64_t item = list.format == DSV4_ROWS_V4    ? item_bytes(DType::kBF16)
                       : list.format == DSV4_ROWS_V32 ? item_bytes(DType::kF32)
                                                      : item_bytes(dtype);
  DSV4_CHECK(list.page_stride % item == 0, "{}.page_stride={} bytes: want a multiple of {}", name,
             list.page_stride, item);
  DSV4_CHECK(reinterpret_cast<uintptr_t>(list.pages) % static_cast<uintptr_t>(item) == 0,
             "{}.pages at {}: want a multiple of {} bytes", name, list.pages, item);
  const int64_t stride = list.page_stride / item_bytes(dtype);
  pool.pages = view(strided(dtype, {list.num_pages, page}, &stride), list.pages);
  return pool;
}

KvList list_of(const char* name, const dsv4_kv_list& list, const Params& p) {
  if (list.pages == nullptr) {
    DSV4_CHECK(list.rows == nullptr && list.lengths == nullptr, "{} has rows but no pages", name);
    return {};
  }
  KvList out{.pool = pool_of(name, list, p.d)};
  out.indices = view(strided(DType::kI32, {p.b, p.s_q, list.n}, list.rows_stride), list.rows);
  if (list.lengths != nullptr) {
    out.topk_length = view(TensorMeta::contiguous(DType::kI32, {p.b}), list.lengths);
  }
  return out;
}

// sums: lse or max_logits.
TensorView sums_of(const Params& p, float* data, const int64_t* strides) {
  if (data == nullptr) return {};
  return view(strided(DType::kF32, {p.b, p.h, p.s_q}, strides), data);
}

SparseMlaArgs args_of(const Params& p) {
  SparseMlaArgs args;
  args.q = view(strided(dtype_of("q", p.q_dtype), {p.b, p.s_q, p.h, p.d}, p.q_stride), p.q);
  args.window = list_of("window", p.window, p);
  args.compressed = list_of("compressed", p.compressed, p);
  if (p.sink != nullptr) args.sink = view(TensorMeta::contiguous(DType::kF32, {p.h}), p.sink);
  args.scale = p.scale;
  args.normalized = p.unnormalized == 0;
  args.out =
      view(strided(dtype_of("out", p.out_dtype), {p.b, p.s_q, p.h, p.d_v}, p.out_stride), p.out);
  args.lse = sums_of(p, p.lse, p.lse_stride);
  args.max_logits = sums_of(p, p.max_logits, p.max_logits_stride);
  return args;
}

void check(const Params* p) {
  DSV4_CHECK(p != nullptr, "params is null");
  DSV4_CHECK(p->size == sizeof(Params), "params.size={}: this library's struct has {} bytes",
             p->size, sizeof(Params));
  DSV4_CHECK(p->device >= DSV4_HOST, "device={}: want a CUDA ordinal or DSV4_HOST ({})", p->device,
             DSV4_HOST);
}

Context context_of(const Params& p) {
  return {.numerics = p.exact != 0 ? Numerics::kExact : Numerics::kOfficial,
          .need_batch_invariant = p.batch_invariant != 0,
          .force_impl = p.implementation == nullptr ? "" : p.implementation};
}

int64_t workspace_bytes(const Params& p, const SparseMlaArgs& args) {
  int64_t bytes = 0;
  on_device({.ordinal = p.device}, context_of(p), [&](const Context& context) {
    bytes = dsv4::workspace_bytes(sparse_mla, context, args);
  });
  return bytes;
}

void run(const Params& p, Place place) {
  const SparseMlaArgs args = args_of(p);
  if (place.ordinal != DSV4_HOST && place.workspace == nullptr && p.schedule != nullptr) {
    place.workspace_bytes = static_cast<size_t>(workspace_bytes(p, args));
    place.workspace =
        place.workspace_bytes == 0 ? nullptr : p.schedule->workspace(place, place.workspace_bytes);
  }
  on_device(place, context_of(p), [&](const Context& context) { sparse_mla(context, args); });
}

}  // namespace
}  // namespace dsv4::capi

using dsv4::capi::guarded;

const char* dsv4_version(void) {
  return DSV4_VERSION;
}

int dsv4_sparse_mla_workspace_bytes(const dsv4_sparse_mla_params* params, size_t* bytes) {
  return guarded([&] {
    dsv4::capi::check(params);
    DSV4_CHECK(bytes != nullptr, "bytes is null");
    const auto args = dsv4::capi::args_of(*params);
    *bytes = static_cast<size_t>(dsv4::capi::workspace_bytes(*params, args));
  });
}

int dsv4_sparse_mla(const dsv4_sparse_mla_params* params, void* workspace, size_t workspace_bytes,
                    void* stream) {
  return guarded([&] {
    dsv4::capi::check(params);
    dsv4::capi::run(*params, {.ordinal = params->device,
                              .stream = stream,
                              .workspace = workspace,
                              .workspace_bytes = workspace_bytes});
  });
}

int dsv4_schedule_create(dsv4_schedule** schedule) {
  return guarded([&] {
    DSV4_CHECK(schedule != nullptr, "schedule is null");
    *schedule = new dsv4_schedule;
  });
}

void dsv4_schedule_destroy(dsv4_schedule* schedule) {
  delete schedule;
}
