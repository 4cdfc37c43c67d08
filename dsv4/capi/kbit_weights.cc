#include "dsv4/capi/kbit_weights.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#endif
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/repack_image.h"
#include "dsv4/ops/kbit/repack_kbit.h"
#include "dsv4/tensor/memory.h"

namespace dsv4::capi {
namespace {

WeightFormat format_of(const char* name, const dsv4_weight& weight) {
  switch (weight.format) {
    case DSV4_WEIGHT_FLOAT:
      return weight.data.dtype == DSV4_F32    ? WeightFormat::kF32
             : weight.data.dtype == DSV4_BF16 ? WeightFormat::kBF16
                                              : WeightFormat::kF16;
    case DSV4_WEIGHT_FP8:
      return WeightFormat::kFp8Block;
    case DSV4_WEIGHT_MXFP4:
      return WeightFormat::kMxfp4;
    case DSV4_WEIGHT_NVFP4:
      return WeightFormat::kNvfp4;
    case DSV4_WEIGHT_KBIT:
      return WeightFormat::kKbit;
    default:
      fail(ErrorCode::kInvalidArgument, "{}.format={}: want one of dsv4_weight_format", name,
           weight.format);
  }
}

// Libraries without FP8 types pass bytes.
dsv4_tensor retyped(dsv4_tensor tensor, dsv4_dtype dtype) {
  if (tensor.dtype == DSV4_U8 || tensor.dtype == DSV4_I8) tensor.dtype = dtype;
  return tensor;
}

bool is_fp4(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
}

TensorView writable(const ConstTensorView& view) {
  return {view, const_cast<std::byte*>(view.data)};
}

struct RowShapes {
  DType data, scale;
  int64_t data_columns, scale_columns;
};
RowShapes row_shapes(const WeightView& w) {
  if (w.format == WeightFormat::kKbit)
    return {DType::kI32, DType::kU8, w.k / kKbitBlock * w.bits, w.k / kKbitBlock};
  const bool mx = w.format == WeightFormat::kMxfp4;
  return {DType::kU8, mx ? DType::kE8M0 : DType::kE4M3, w.k / 2,
          w.k / (mx ? kMxfp4Group : kNvfp4Group)};
}

constexpr int64_t kAlignment = 256;  // of the rows that are made

void check_layout(const char* name, const WeightView& w, int32_t layout) {
  DSV4_CHECK(layout >= DSV4_ROWS && layout <= DSV4_IMAGE,
             "{}.layout={}: want one of dsv4_weight_layout", name, layout);
  if (layout == DSV4_ROWS) return;
  const bool kbit = w.format == WeightFormat::kKbit;
  DSV4_CHECK(kbit || (layout == DSV4_IMAGE && is_fp4(w.format)), "{}: {} weights have no layout {}",
             name, dsv4::name(w.format), layout == DSV4_TILED ? "tiled" : "image");
  const int64_t group = w.format == WeightFormat::kNvfp4 ? kNvfp4Group : kKbitBlock;
  DSV4_CHECK(w.k % group == 0, "{}: k={} is not a multiple of {}", name, w.k, group);
}

}  // namespace

StoredWeight stored_weight(const char* name, const dsv4_weight& weight, Tensors& tensors) {
  StoredWeight out{.layout = weight.layout};
  WeightView& w = out.rows;
  w.format = format_of(name, weight);
  w.n = weight.n, w.k = weight.k;
  DSV4_CHECK(w.n >= 0 && w.k >= 0, "{}: [{}, {}]", name, w.n, w.k);
  w.scale2 = weight.scale2 == 0 ? 1.f : weight.scale2;
  w.e4m3_codebook = weight.e4m3_codebook != 0;
  if (w.format == WeightFormat::kKbit) {
    w.bits = weight.bits;
    DSV4_CHECK(is_kbit(w.bits), "{}.bits={}: want 2 to 5", name, w.bits);
    w.codebook =
        tensors.view_of("codebook", weight.codebook, {DType::kF32}, {int64_t{1} << w.bits});
    DSV4_CHECK(!absent(weight.codebook), "{}: codebook is absent", name);
  }
  check_layout(name, w, weight.layout);
  DSV4_CHECK(!absent(weight.data), "{}: data is absent", name);
  Dim a("a"), b("b"), c("c");
  if (weight.layout == DSV4_IMAGE) {
    out.data = tensors.view_of("data", weight.data, {DType::kU8}, {a});
  } else if (weight.layout == DSV4_TILED) {
    const int64_t tiles = ceil_div(w.k, int64_t{KbitTiles::kTileK});
    out.data =
        tensors.view_of("data", weight.data, {DType::kI32}, {tiles, w.n, int64_t{2} * w.bits});
    out.scale = tensors.view_of("scale", weight.scale, {DType::kU8}, {tiles, w.n, 2});
  } else {
    const bool fp8 = w.format == WeightFormat::kFp8Block;
    out.data = tensors.view_of(
        "data", fp8 ? retyped(weight.data, DSV4_E4M3) : weight.data,
        {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kU8, DType::kI8, DType::kI32},
        {a, b});
    Dim rows("rows"), columns("columns");
    const dsv4_dtype scale = w.format == WeightFormat::kNvfp4 ? DSV4_E4M3 : DSV4_E8M0;
    const bool bytes = w.format == WeightFormat::kKbit;
    out.scale =
        tensors.view_of("scale", bytes ? weight.scale : retyped(weight.scale, scale),
                        {DType::kE8M0, DType::kE4M3, DType::kU8, DType::kF32}, {rows, columns});
  }
  return out;
}

void rows_from_layout(const Context& context, const StoredWeight& stored, const WeightView& rows) {
  const TensorView data = writable(rows.data), scale = writable(rows.scale);
  if (stored.layout == DSV4_TILED) {
    return repack_kbit(context, {.direction = Repack::kToFlat,
                                 .bits = rows.bits,
                                 .planes_in = stored.data,
                                 .scales_in = stored.scale,
                                 .planes_out = data,
                                 .scales_out = scale});
  }
  repack_image(
      context,
      {.to_image = false, .weight = rows, .data = data, .scale = scale, .image = stored.data});
}

void layout_from_rows(const Context& context, const WeightView& rows, const StoredWeight& to) {
  if (to.layout == DSV4_TILED) {
    return repack_kbit(context, {.bits = rows.bits,
                                 .planes_in = rows.data,
                                 .scales_in = rows.scale,
                                 .planes_out = to.data,
                                 .scales_out = to.scale});
  }
  repack_image(context, {.weight = rows, .image_out = to.data});
}

TensorView KbitWeights::reserve(DType dtype, int64_t rows, int64_t columns) {
  const TensorView view{TensorMeta::contiguous(dtype, {rows, columns}),
                        unmapped_address(made_bytes_)};
  made_bytes_ = align_up(made_bytes_ + view.bytes(), kAlignment);
  return view;
}

WeightView KbitWeights::rows(const char* name, const dsv4_weight& weight) {
  const StoredWeight stored = stored_weight(name, weight, tensors_);
  WeightView w = stored.rows;
  if (stored.layout == DSV4_ROWS) {
    w.data = stored.data, w.scale = stored.scale;
  } else {
    const RowShapes shapes = row_shapes(w);
    w.data = reserve(shapes.data, w.n, shapes.data_columns);
    w.scale = reserve(shapes.scale, w.n, shapes.scale_columns);
    made_.push_back({stored, w});
  }
  check(name, w);
  return w;
}

WeightView KbitWeights::image(const char* name, const dsv4_weight& weight) {
  const StoredWeight stored = stored_weight(name, weight, tensors_);
  WeightView w = stored.rows;
  w.data = stored.data;
  return w;
}

std::vector<WeightView> KbitWeights::rows(const char* name, const dsv4_weight* weights,
                                          int64_t count) {
  DSV4_CHECK(count >= 0 && (count == 0 || weights != nullptr), "{}: {} weights at {}", name, count,
             static_cast<const void*>(weights));
  std::vector<WeightView> views;
  views.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) views.push_back(rows(name, weights[i]));
  return views;
}

void end_early_launches([[maybe_unused]] const Context& context) {
#if DSV4_CUDA
  if (context.device == nullptr) return;
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  std::byte* const byte = scratch.take(DType::kU8, {1}).data;
  Device& device = *context.device;
  if (!device.is_dry_run()) cuda_check(cudaMemsetAsync(byte, 0, 1, device.stream()), "weights");
#endif
}

MadeRows::MadeRows(const KbitWeights& weights, const Context& context)
    : bytes_(weights.made_bytes_) {
  if (bytes_ == 0) return;
  if (context.device == nullptr) {
    host_ = Buffer(DType::kU8, {bytes_});
    memory_ = host_.view().data;
  } else {
    Scratch& scratch = workspace(context);
    scope_.emplace(scratch);
    memory_ = scratch.take(DType::kU8, {bytes_}).data;
  }
  Context conversion = context;
  conversion.force_impl = {};  // it names one of the product
  for (const KbitWeights::Made& made : weights.made_)
    rows_from_layout(conversion, made.stored, (*this)(made.rows));
  end_early_launches(context);
}

WeightView MadeRows::operator()(const WeightView& rows) const {
  WeightView w = rows;
  w.data = placed(w.data), w.scale = placed(w.scale);
  return w;
}

ConstTensorView MadeRows::placed(const ConstTensorView& view) const {
  const auto first = reinterpret_cast<uintptr_t>(unmapped_address(0));
  const uintptr_t offset = reinterpret_cast<uintptr_t>(view.data) - first;
  if (offset >= static_cast<uintptr_t>(bytes_)) return view;
  ConstTensorView made = view;
  made.data = memory_ + offset;
  return made;
}

}  // namespace dsv4::capi
