#include "dsv4/tensor/tensor.h"

#include "dsv4/base/error.h"

namespace dsv4 {

TensorMeta TensorMeta::contiguous(DType dtype, std::initializer_list<int64_t> shape) {
  return contiguous(dtype, std::span(shape.begin(), shape.size()));
}

TensorMeta TensorMeta::contiguous(DType dtype, std::span<const int64_t> shape) {
  DSV4_CHECK(shape.size() <= kMaxRank, "rank {} exceeds {}", shape.size(), kMaxRank);
  TensorMeta meta;
  meta.dtype = dtype;
  meta.rank = static_cast<int>(shape.size());
  size_t axis = 0;
  for (const int64_t extent : shape) {
    DSV4_CHECK(extent >= 0, "axis {} is {}", axis, extent);
    meta.shape[axis++] = extent;
  }
  int64_t step = 1;
  bool overflow = false;
  for (size_t i = shape.size(); i-- > 0;) {
    meta.stride[i] = step;
    overflow = overflow || __builtin_mul_overflow(step, meta.shape[i], &step);
  }
  overflow = overflow || __builtin_mul_overflow(step, item_bytes(dtype), &step);
  DSV4_CHECK(!overflow, "{} has more bytes than 63 bits count", to_string(meta));
  return meta;
}

int64_t TensorMeta::numel() const {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= dim(i);
  return count;
}

bool TensorMeta::is_contiguous() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride[static_cast<size_t>(i)] != step) return false;
    step *= dim(i);
  }
  return true;
}

std::string to_string(const TensorMeta& meta) {
  std::string text = "[";
  for (int i = 0; i < meta.rank; ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", meta.dim(i));
  return fmt::format("{}] {}", text, name(meta.dtype));
}

template <class Byte>
void BasicTensorView<Byte>::wrong_width(size_t bytes) const {
  fail(ErrorCode::kInvalidArgument, "{} read as {}-byte items", to_string(*this), bytes);
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::slice(int axis, int64_t begin, int64_t end) const {
  DSV4_CHECK(axis >= 0 && axis < rank && 0 <= begin && begin <= end && end <= dim(axis),
             "slice [{}, {}) of axis {} of {}", begin, end, axis, to_string(*this));
  const auto i = static_cast<size_t>(axis);
  BasicTensorView part = *this;
  part.shape[i] = end - begin;
  part.data += begin * stride[i] * item_bytes(dtype);
  return part;
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::reshape(std::initializer_list<int64_t> to) const {
  BasicTensorView view(TensorMeta::contiguous(dtype, to), data);
  DSV4_CHECK(is_contiguous() && view.numel() == numel(), "reshape {} to {}", to_string(*this),
             to_string(view));
  return view;
}

template <class Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::unsqueeze(int axis) const {
  DSV4_CHECK(0 <= axis && axis <= rank && rank < kMaxRank, "unsqueeze axis {} of {}", axis,
             to_string(*this));
  const auto at = static_cast<size_t>(axis);
  BasicTensorView view = *this;
  for (auto i = static_cast<size_t>(rank); i > at; --i) {
    view.shape[i] = shape[i - 1];
    view.stride[i] = stride[i - 1];
  }
  view.shape[at] = 1;
  view.stride[at] = axis == rank ? 1 : shape[at] * stride[at];
  ++view.rank;
  return view;
}

template struct BasicTensorView<std::byte>;
template struct BasicTensorView<const std::byte>;

bool DimArg::match(int64_t actual) const {
  if (dim_ == nullptr) return actual == fixed_;
  if (dim_->value_ < 0) dim_->value_ = actual;
  return dim_->value_ == actual;
}

std::string DimArg::text() const {
  if (dim_ == nullptr) return std::to_string(fixed_);
  return **dim_ < 0 ? std::string(dim_->name()) : fmt::format("{}={}", dim_->name(), **dim_);
}

void expect(const char* name, const ConstTensorView& view, std::initializer_list<DType> dtypes,
            std::initializer_list<DimArg> shape) {
  bool ok = view.rank == static_cast<int>(shape.size());
  int axis = 0;
  for (const DimArg& want : shape) ok = ok && want.match(view.dim(axis++));
  bool dtype_ok = false;
  for (const DType dtype : dtypes) dtype_ok = dtype_ok || dtype == view.dtype;
  const bool dense =
      view.rank == 0 || view.dim(-1) <= 1 || view.stride[static_cast<size_t>(view.rank - 1)] == 1;
  const bool present = !view.empty() || view.numel() == 0;
  if (ok && dtype_ok && dense && present) return;

  std::string want = "[";
  for (const DimArg& dim : shape) want += (want.size() > 1 ? ", " : "") + dim.text();
  want += "] ";
  for (const DType dtype : dtypes)
    want += fmt::format("{}{}", want.back() == ' ' ? "" : "|", dsv4::name(dtype));
  fail(ErrorCode::kInvalidArgument, "{}: want {}, got {}{}", name, want, to_string(view),
       !present ? " without data"
       : dense  ? ""
                : " with a strided last axis");
}

}  // namespace dsv4
