// dsv4_kbit.h: codebooks, and what makes or converts weights.

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/capi/call.h"
#include "dsv4/capi/kbit_weights.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"
#include "dsv4_kbit.h"

namespace dsv4::capi {
namespace {

constexpr std::initializer_list<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

Codebook codebook_named(const char* name, int32_t bits) {
  DSV4_CHECK(name != nullptr, "name is null");
  const std::string_view wanted = name;
  if (wanted == "nf") return nf_codebook(bits);
  if (wanted == "bnf") return bnf_codebook(bits);
  if (wanted == "e4m3") return e4m3_codebook(bits);
  DSV4_CHECK(wanted == "e2m1" && bits == 4,
             "no codebook '{}' of {} bits: want nf, bnf or e4m3, or e2m1 of 4 bits", wanted, bits);
  return e2m1_codebook();
}

BoundOp on_host(std::function<void()> run) {
  return {.workspace_bytes = [](const Context&) { return int64_t{0}; },
          .run = [run = std::move(run)](const Context&) { run(); }};
}

struct QuantizeCall {
  Tensors tensors;
  QuantizeKbitArgs args;

  explicit QuantizeCall(const dsv4_quantize_kbit_params& p, bool /*shapes_only*/) {
    DSV4_CHECK(is_kbit(p.bits), "bits={}: want 2 to 5", p.bits);
    Dim n("n"), k("k"), blocks("ceil(k/32)"), words("ceil(k/32) * bits");
    for (const auto& [name, tensor] :
         {std::pair{"x", &p.x}, {"codebook", &p.codebook}, {"data", &p.data}, {"scale", &p.scale}})
      DSV4_CHECK(!absent(*tensor), "{} is absent", name);
    args.x = tensors.view_of("x", p.x, kFloats, {n, k});
    require_host(tensors, "quantize_kbit");
    const ConstTensorView values =
        tensors.view_of("codebook", p.codebook, {DType::kF32}, {int64_t{1} << p.bits});
    args.codebook = user_codebook({values.as<float>(), static_cast<size_t>(values.numel())});
    args.choice = p.search != 0 ? ScaleChoice::kSearched : ScaleChoice::kReference;
    args.importance = tensors.view_of("importance", p.importance, {DType::kF32}, {k});
    if (p.tensor_scale != 0) args.tensor_scale = p.tensor_scale;
    args.planes = tensors.view_of("data", p.data, {DType::kI32}, {n, words});
    args.scales = tensors.view_of("scale", p.scale, {DType::kU8}, {n, blocks});
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) { return workspace_bytes(quantize_kbit, c, args); },
            .run = [this](const Context& c) { quantize_kbit(c, args); }};
  }
};

struct DequantizeCall {
  Tensors tensors;
  KbitWeights weights;
  DequantizeArgs args;

  DequantizeCall(const dsv4_dequantize_kbit_params& p, bool shapes_only)
      : weights(tensors, shapes_only) {
    Dim n("n", p.weight.n), k("k", p.weight.k);
    DSV4_CHECK(!absent(p.out), "out is absent");
    args.out = tensors.view_of("out", p.out, kFloats, {n, k});
    args.weight = weights.rows("weight", p.weight);
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) { return workspace_bytes(dequantize, c, args); },
            .run = [this](const Context& c) { dequantize(c, args); }};
  }
};

void copy_rows(const WeightView& from, const TensorView& data, const TensorView& scale) {
  for (int64_t i = 0; i < from.n; ++i) {
    const auto copy = [i](const ConstTensorView& in, const TensorView& out) {
      const int64_t item = item_bytes(in.dtype);
      std::memcpy(out.data + i * out.row_stride() * item, in.data + i * in.row_stride() * item,
                  static_cast<size_t>(in.dim(1) * item));
    };
    copy(from.data, data), copy(from.scale, scale);
  }
}

struct RepackCall {
  Tensors tensors;
  KbitWeights weights;
  WeightView rows;
  StoredWeight to;

  RepackCall(const dsv4_repack_kbit_params& p, bool shapes_only) : weights(tensors, shapes_only) {
    DSV4_CHECK(p.from.layout != p.to.layout, "from and to are both in layout {}", p.to.layout);
    rows = weights.rows("from", p.from);
    dsv4_weight wanted = p.from;
    wanted.layout = p.to.layout, wanted.data = p.to.data, wanted.scale = p.to.scale;
    to = stored_weight("to", wanted, tensors);
    require_host(tensors, "repack_kbit");
    if (to.layout != DSV4_ROWS) return;
    WeightView written = to.rows;
    written.data = to.data, written.scale = to.scale;
    check("to", written);
  }
  BoundOp bind() const {
    return on_host([this] {
      to.layout == DSV4_ROWS ? copy_rows(rows, to.data, to.scale) : layout_from_rows(rows, to);
    });
  }
};

}  // namespace
}  // namespace dsv4::capi

using namespace dsv4::capi;  // NOLINT: what follows is dsv4's, under C names

int dsv4_kbit_codebook(const char* name, int32_t bits, float* codebook) {
  return guarded([&] {
    DSV4_CHECK(codebook != nullptr, "codebook is null");
    const dsv4::Codebook book = codebook_named(name, bits);
    std::copy(book.values().begin(), book.values().end(), codebook);
  });
}
int dsv4_create_normal_float_codebook(int32_t bits, float* codebook) {
  return dsv4_kbit_codebook("nf", bits, codebook);
}

int dsv4_kbit_image_bytes(const dsv4_weight* weight, int64_t* bytes) {
  return guarded([&] {
    DSV4_CHECK(weight != nullptr && bytes != nullptr, "weight or bytes is null");
    const dsv4::ImageScale scale = weight->format == DSV4_WEIGHT_KBIT    ? dsv4::ImageScale::kE4M4
                                   : weight->format == DSV4_WEIGHT_MXFP4 ? dsv4::ImageScale::kUe8m0
                                                                         : dsv4::ImageScale::kE4M3;
    const bool kbit = scale == dsv4::ImageScale::kE4M4;
    DSV4_CHECK(kbit ? dsv4::is_kbit(weight->bits)
                    : weight->format == DSV4_WEIGHT_MXFP4 || weight->format == DSV4_WEIGHT_NVFP4,
               "no image of format={}, bits={}", weight->format, weight->bits);
    *bytes =
        dsv4::KbitImage{
            .n = weight->n, .k = weight->k, .bits = kbit ? weight->bits : 4, .scale = scale}
            .bytes();
  });
}

int dsv4_kbit_tensor_scale(const dsv4_tensor* x, float* scale) {
  return guarded([&] {
    DSV4_CHECK(x != nullptr && scale != nullptr && !absent(*x), "x or scale is null");
    Tensors tensors;
    dsv4::Dim n("n"), k("k");
    const dsv4::TensorView view = tensors.view_of("x", *x, kFloats, {n, k});
    require_host(tensors, "kbit_tensor_scale");
    *scale = dsv4::choose_tensor_scale(dsv4::largest_magnitude(view));
  });
}

int dsv4_quantize_kbit(const dsv4_quantize_kbit_params* params, const dsv4_call* call) {
  return run_call<QuantizeCall>(params, call);
}
int dsv4_quantize_kbit_workspace_bytes(const dsv4_quantize_kbit_params* params,
                                       const dsv4_call* call, size_t* bytes) {
  return ask_workspace<QuantizeCall>(params, call, bytes);
}

int dsv4_dequantize_kbit(const dsv4_dequantize_kbit_params* params, const dsv4_call* call) {
  return run_call<DequantizeCall>(params, call);
}
int dsv4_dequantize_kbit_workspace_bytes(const dsv4_dequantize_kbit_params* params,
                                         const dsv4_call* call, size_t* bytes) {
  return ask_workspace<DequantizeCall>(params, call, bytes);
}

int dsv4_repack_kbit(const dsv4_repack_kbit_params* params, const dsv4_call* call) {
  return run_call<RepackCall>(params, call);
}
int dsv4_repack_kbit_workspace_bytes(const dsv4_repack_kbit_params* params, const dsv4_call* call,
                                     size_t* bytes) {
  return ask_workspace<RepackCall>(params, call, bytes);
}
