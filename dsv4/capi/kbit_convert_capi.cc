// dsv4_kbit.h: codebooks, and what makes or converts weights.

#include <algorithm>
#include <limits>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/capi/call.h"
#include "dsv4/capi/kbit_weights.h"
#include "dsv4/capi/read_tensor.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/ops/kbit/repack_scales.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"
#include "dsv4_kbit.h"

namespace dsv4::capi {
namespace {

constexpr std::initializer_list<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};
constexpr std::initializer_list<DType> kByteTypes = {DType::kU8, DType::kE4M3, DType::kE8M0};

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

// On a GPU the call waits: the codebook is an argument of the kernel, and blocks that cannot be
// written are reported.
struct QuantizeCall {
  Tensors tensors;
  QuantizeKbitArgs args;
  ConstTensorView codebook;

  explicit QuantizeCall(const dsv4_quantize_kbit_params& p) {
    DSV4_CHECK(is_kbit(p.bits), "bits={}: want 2 to 5", p.bits);
    Dim n("n"), k("k"), blocks("ceil(k/32)"), words("ceil(k/32) * bits");
    for (const auto& [name, tensor] :
         {std::pair{"x", &p.x}, {"codebook", &p.codebook}, {"data", &p.data}, {"scale", &p.scale}})
      DSV4_CHECK(!absent(*tensor), "{} is absent", name);
    args.x = tensors.view_of("x", p.x, kFloats, {n, k});
    codebook = tensors.view_of("codebook", p.codebook, {DType::kF32}, {int64_t{1} << p.bits});
    args.choice = p.search != 0 ? ScaleChoice::kSearched : ScaleChoice::kReference;
    args.importance = tensors.view_of("importance", p.importance, {DType::kF32}, {k});
    if (p.tensor_scale != 0) args.tensor_scale = p.tensor_scale;
    args.planes = tensors.view_of("data", p.data, {DType::kI32}, {n, words});
    args.scales = tensors.view_of("scale", p.scale, {DType::kU8}, {n, blocks});
  }
  BoundOp bind() const {
    return {.workspace_bytes = [](const Context& c) { return c.device == nullptr ? 0 : kWord; },
            .run = [this](const Context& c) { run(c); }};
  }

 private:
  static constexpr int64_t kWord = 256;  // what Scratch takes for one number

  void run(const Context& context) const {
    QuantizeKbitArgs call = args;
    std::vector<float> values(static_cast<size_t>(codebook.numel()));
    read_tensor(context, codebook, values.data());
    call.codebook = user_codebook(values);
    if (context.device == nullptr) return quantize_kbit(context, call);
    Scratch& scratch = workspace(context);
    const Scratch::Scope scope(scratch);
    constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
    int32_t first_bad = kNone;
    call.first_bad = scratch.take(DType::kI32, {1});
    write_tensor(context, call.first_bad, &first_bad);
    quantize_kbit(context, call);
    read_tensor(context, call.first_bad, &first_bad);
    if (first_bad == kNone) return;
    const int64_t blocks = args.scales.dim(1);
    fail(
        ErrorCode::kBadInput,
        "row {}, block {}: a value or an importance is not finite, an importance is negative, or a "
        "value is beyond the E4M4 range with tensor_scale {}; kbit_tensor_scale says which "
        "tensor_scale to use",
        first_bad / blocks, first_bad % blocks, args.tensor_scale);
  }
};

struct DequantizeCall {
  Tensors tensors;
  KbitWeights weights;
  DequantizeArgs args;

  explicit DequantizeCall(const dsv4_dequantize_kbit_params& p) : weights(tensors) {
    Dim n("n", p.weight.n), k("k", p.weight.k);
    DSV4_CHECK(!absent(p.out), "out is absent");
    args.out = tensors.view_of("out", p.out, kFloats, {n, k});
    args.weight = weights.rows("weight", p.weight);
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) {
                  return weights.workspace_bytes(c) + workspace_bytes(dequantize, c, args);
                },
            .run =
                [this](const Context& c) {
                  const MadeRows made(weights, c);
                  dequantize(c, {.weight = made(args.weight), .out = args.out});
                }};
  }
};

struct RepackCall {
  Tensors tensors;
  KbitWeights weights;
  StoredWeight from, to;
  WeightView between;  // rows, where neither side has them

  explicit RepackCall(const dsv4_repack_kbit_params& p) : weights(tensors) {
    DSV4_CHECK(p.from.layout != p.to.layout, "from and to are both in layout {}", p.to.layout);
    from = stored_weight("from", p.from, tensors);
    dsv4_weight wanted = p.from;
    wanted.layout = p.to.layout, wanted.data = p.to.data, wanted.scale = p.to.scale;
    to = stored_weight("to", wanted, tensors);
    if (from.layout == DSV4_ROWS) {
      check("from", with_tensors(from));
    } else if (to.layout == DSV4_ROWS) {
      check("to", with_tensors(to));
    } else {
      between = weights.rows("from", p.from);
    }
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) {
                  return c.device == nullptr ? 0 : std::max(kEndBytes, weights.workspace_bytes(c));
                },
            .run =
                [this](const Context& c) {
                  run(c);
                  end_early_launches(c);
                }};
  }

 private:
  static WeightView with_tensors(const StoredWeight& rows) {
    WeightView w = rows.rows;
    w.data = rows.data, w.scale = rows.scale;
    return w;
  }
  void run(const Context& context) const {
    if (from.layout == DSV4_ROWS) return layout_from_rows(context, with_tensors(from), to);
    if (to.layout == DSV4_ROWS) return rows_from_layout(context, from, with_tensors(to));
    const MadeRows made(weights, context);
    layout_from_rows(context, made(between), to);
  }
};

struct RepackScalesCall {
  Tensors tensors;
  RepackScalesArgs args;

  explicit RepackScalesCall(const dsv4_repack_scales_params& p) {
    DSV4_CHECK(!absent(p.rows) && !absent(p.tiles), "rows or tiles are absent");
    Dim n("n"), groups("groups"), tile_rows("ceil(n/128)"), tile_columns("ceil(groups/4)");
    const TensorView rows = tensors.view_of("rows", p.rows, kByteTypes, {n, groups});
    const TensorView tiles =
        tensors.view_of("tiles", p.tiles, kByteTypes, {tile_rows, tile_columns, 512});
    args = {.direction = p.to_rows != 0 ? Repack::kToFlat : Repack::kToTiled,
            .scales_in = p.to_rows != 0 ? tiles : rows,
            .scales_out = p.to_rows != 0 ? rows : tiles};
  }
  BoundOp bind() const {
    return {.workspace_bytes = [](const Context&) { return int64_t{0}; },
            .run = [this](const Context& c) { repack_scales(c, args); }};
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
    *scale = dsv4::choose_tensor_scale(largest_magnitude_at(tensors.device(), view));
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

int dsv4_repack_scales(const dsv4_repack_scales_params* params, const dsv4_call* call) {
  return run_call<RepackScalesCall>(params, call);
}
int dsv4_repack_scales_workspace_bytes(const dsv4_repack_scales_params* params,
                                       const dsv4_call* call, size_t* bytes) {
  return ask_workspace<RepackScalesCall>(params, call, bytes);
}
