// dsv4_sparse_mla.h: its structs to the arguments of the ops sparse_mla and kv_insert.

#include "dsv4_sparse_mla.h"

#include "dsv4/base/error.h"
#include "dsv4/capi/call.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4::capi {
namespace {

using Params = dsv4_sparse_mla_params;

struct Dims {
  Dim b{"b"}, s_q{"s_q"}, h{"h"}, d{"d"}, d_v{"d_v"};
};

// Bytes that a kernel reads at once from packed rows: pages must lie on multiples of them.
int64_t unit_bytes(const KvPool& pool) {
  if (!pool.packed()) return item_bytes(pool.pages.dtype);
  return item_bytes(pool.layout.v32() ? DType::kF32 : DType::kBF16);
}

KvLayout layout_of(const char* name, const TensorView& pages) {
  if (item_bytes(pages.dtype) > 1) return {.nope = static_cast<int>(pages.dim(2)), .rope = 0};
  for (const KvLayout& layout : {KvLayout{}, kV32Layout})
    if (layout.row_bytes() == pages.dim(2)) return layout;
  fail(ErrorCode::kInvalidArgument, "{}: want rows of {} (V4) or {} (V3.2) bytes, got {}", name,
       KvLayout{}.row_bytes(), kV32Layout.row_bytes(), to_string(pages));
}

// pages: [num_pages, page_entries, row]
KvPool pool_of(const char* name, const TensorView& pages) {
  const int64_t num_pages = pages.dim(0), entries = pages.dim(1);
  DSV4_CHECK(entries > 0, "{}: want rows in a page, got {}", name, to_string(pages));
  DSV4_CHECK(entries == 1 || pages.stride[1] == pages.dim(2),
             "{}: want the rows of a page side by side, got a stride of {} on axis 1 of {}", name,
             pages.stride[1], to_string(pages));
  KvPool pool{.layout = layout_of(name, pages), .page_entries = static_cast<int>(entries)};
  const bool packed = item_bytes(pages.dtype) == 1;
  pool.pages = {TensorMeta::contiguous(
                    packed ? DType::kU8 : pages.dtype,
                    {num_pages, packed ? pool.layout.page_bytes(entries) : entries * pages.dim(2)}),
                pages.data};
  pool.pages.stride[0] = pages.stride[0];
  const int64_t unit = unit_bytes(pool), stride = pages.stride[0] * item_bytes(pages.dtype);
  DSV4_CHECK(num_pages <= 1 || stride % unit == 0,
             "{}: pages {} bytes apart: want a multiple of {}", name, stride, unit);
  DSV4_CHECK(reinterpret_cast<uintptr_t>(pages.data) % static_cast<uintptr_t>(unit) == 0,
             "{} is at {}: want a multiple of {} bytes", name, static_cast<void*>(pages.data),
             unit);
  return pool;
}

struct Names {
  const char *pages, *indices, *topk_length;
};

KvList list_of(const Names& names, const dsv4_kv_list& list, Dims& dims, Tensors& tensors) {
  if (absent(list.pages)) {
    DSV4_CHECK(absent(list.indices) && absent(list.topk_length), "{} is absent, but {} is not",
               names.pages, absent(list.indices) ? names.topk_length : names.indices);
    return {};
  }
  Dim num_pages("num_pages"), page_entries("page_entries"), row("row"), n("n");
  const TensorView pages = tensors.view_of(
      names.pages, list.pages, {DType::kU8, DType::kI8, DType::kE4M3, DType::kF32, DType::kBF16},
      {num_pages, page_entries, row});
  KvList out;
  DSV4_CHECK(!absent(list.indices), "{} without {}", name_of(names.pages, list.pages),
             names.indices);
  out.indices = tensors.view_of(names.indices, list.indices, {DType::kI32}, {dims.b, dims.s_q, n});
  out.topk_length = tensors.view_of(names.topk_length, list.topk_length, {DType::kI32}, {dims.b});
  if (pages.dim(0) == 0) return {};  // every index is beyond it
  out.pool = pool_of(name_of(names.pages, list.pages), pages);
  return out;
}

SparseMlaArgs args_of(const Params& p, Tensors& tensors) {
  const std::initializer_list<DType> floats = {DType::kF32, DType::kBF16};
  Dims dims;
  SparseMlaArgs args;
  DSV4_CHECK(!absent(p.q), "q is absent");
  DSV4_CHECK(!absent(p.out), "out is absent");
  args.q = tensors.view_of("q", p.q, floats, {dims.b, dims.s_q, dims.h, dims.d});
  args.window =
      list_of({"window.pages", "window.indices", "window.topk_length"}, p.window, dims, tensors);
  args.compressed = list_of({"compressed.pages", "compressed.indices", "compressed.topk_length"},
                            p.compressed, dims, tensors);
  args.sink = tensors.view_of("sink", p.sink, {DType::kF32}, {dims.h});
  args.scale = p.scale;
  args.normalized = p.unnormalized == 0;
  args.out = tensors.view_of("out", p.out, floats, {dims.b, dims.s_q, dims.h, dims.d_v});
  args.lse = tensors.view_of("lse", p.lse, {DType::kF32}, {dims.b, dims.h, dims.s_q});
  args.max_logits =
      tensors.view_of("max_logits", p.max_logits, {DType::kF32}, {dims.b, dims.h, dims.s_q});
  return args;
}

BoundOp bind(const SparseMlaArgs& args) {
  return {.workspace_bytes = [&](const Context& c) { return workspace_bytes(sparse_mla, c, args); },
          .run = [&](const Context& c) { sparse_mla(c, args); }};
}

KvInsertArgs args_of(const dsv4_kv_insert_params& p, Tensors& tensors) {
  Dim n("n"), d("d"), num_pages("num_pages"), page_entries("page_entries"), row("row");
  DSV4_CHECK(!absent(p.x) && !absent(p.rows) && !absent(p.pages), "x, rows or pages are absent");
  KvInsertArgs args;
  args.x = tensors.view_of("x", p.x, {DType::kF32, DType::kBF16}, {n, d});
  args.rows = tensors.view_of("rows", p.rows, {DType::kI32}, {n});
  const TensorView pages = tensors.view_of(
      "pages", p.pages, {DType::kU8, DType::kI8, DType::kE4M3, DType::kF32, DType::kBF16},
      {num_pages, page_entries, row});
  args.pool = pool_of(name_of("pages", p.pages), pages);
  return args;
}

BoundOp bind(const KvInsertArgs& args) {
  return {.workspace_bytes = [&](const Context& c) { return workspace_bytes(kv_insert, c, args); },
          .run = [&](const Context& c) { kv_insert(c, args); }};
}

}  // namespace
}  // namespace dsv4::capi

using namespace dsv4::capi;  // NOLINT: what follows is dsv4's, under C names

int dsv4_sparse_mla(const dsv4_sparse_mla_params* params, const dsv4_call* call) {
  return guarded([&] {
    Tensors tensors;
    const dsv4::SparseMlaArgs args = args_of(checked("params", params), tensors);
    run(call, tensors.device(), bind(args));
  });
}

int dsv4_sparse_mla_workspace_bytes(const dsv4_sparse_mla_params* params, const dsv4_call* call,
                                    size_t* bytes) {
  return guarded([&] {
    Tensors tensors;
    const dsv4::SparseMlaArgs args = args_of(checked("params", params), tensors);
    write_workspace_bytes(call, tensors.device(), bind(args), bytes);
  });
}

int dsv4_kv_insert(const dsv4_kv_insert_params* params, const dsv4_call* call) {
  return guarded([&] {
    Tensors tensors;
    const dsv4::KvInsertArgs args = args_of(checked("params", params), tensors);
    run(call, tensors.device(), bind(args));
  });
}

int dsv4_kv_insert_workspace_bytes(const dsv4_kv_insert_params* params, const dsv4_call* call,
                                   size_t* bytes) {
  return guarded([&] {
    Tensors tensors;
    const dsv4::KvInsertArgs args = args_of(checked("params", params), tensors);
    write_workspace_bytes(call, tensors.device(), bind(args), bytes);
  });
}
