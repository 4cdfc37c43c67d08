// A tensor view: pointer, dtype, shape, strides. Views are values; they never own memory.
//
// Strides are in elements. The last axis is always contiguous (stride 1), and every op may rely on
// it; slice() and reshape() preserve it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "dsv4/tensor/dtype.h"

namespace dsv4 {

inline constexpr int kMaxRank = 4;

// Everything except the pointer; the loader's index of a checkpoint maps names to TensorMeta.
struct TensorMeta {
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};   // in elements
  std::array<int64_t, kMaxRank> stride{};  // in elements

  static TensorMeta contiguous(DType dtype, std::initializer_list<int64_t> shape);
  static TensorMeta contiguous(DType dtype,
                               std::span<const int64_t> shape);  // rank known at run time

  int64_t dim(int axis) const { return shape[static_cast<size_t>(axis < 0 ? axis + rank : axis)]; }
  int64_t row_stride() const { return rank < 2 ? 0 : stride[static_cast<size_t>(rank - 2)]; }
  int64_t numel() const;
  int64_t bytes() const { return numel() * item_bytes(dtype); }  // of the elements, without gaps
  bool is_contiguous() const;
};

// "[4, 128] BF16"
std::string to_string(const TensorMeta& meta);

template <class Byte>
struct BasicTensorView : TensorMeta {
  Byte* data = nullptr;

  BasicTensorView() = default;
  BasicTensorView(const TensorMeta& meta, Byte* bytes) : TensorMeta(meta), data(bytes) {}
  // A mutable view is also a const view.
  template <class Other, class = std::enable_if_t<std::is_convertible_v<Other*, Byte*>>>
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: implicit on purpose
      : TensorMeta(other), data(other.data) {}

  bool empty() const { return data == nullptr; }

  // Typed pointer to the first element; T must have the width of the dtype (checked).
  template <class T>
  auto* as() const {
    if (static_cast<int64_t>(sizeof(T)) != item_bytes(dtype)) wrong_width(sizeof(T));
    using Typed = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Typed*>(data);
  }
  // Start of row i of the tensor viewed as [numel / last, last]; needs rank 2 or contiguity.
  template <class T>
  auto* row(int64_t i) const {
    return as<T>() + i * (rank == 2 ? stride[0] : dim(-1));
  }

  BasicTensorView slice(int axis, int64_t begin, int64_t end) const;
  BasicTensorView reshape(std::initializer_list<int64_t> to) const;  // contiguous views only
  BasicTensorView unsqueeze(int axis) const;  // an axis of one element before `axis`

 private:
  [[noreturn]] void wrong_width(size_t bytes) const;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

// Where the values of a view are stored besides: at the same place of memory that each other rank
// of a model has, at a distance from the address here (comm/symmetric_memory.h). An op whose
// arguments have mirrors stores every value in all places; an implementation that cannot refuses
// the call.
struct Mirrors {
  static constexpr int kMost = 7;

  int32_t count = 0;
  int64_t distance[kMost] = {};  // bytes, multiples of 256

  bool empty() const { return count == 0; }
};

// Shape checks that read like the documentation. The first use of a Dim binds it and every later
// use compares with it, so one list of expect() lines validates a whole argument struct:
//
//   Dim t("t"), d("d");
//   expect("x",   a.x,   {DType::kF32, DType::kBF16}, {t, d});
//   expect("out", a.out, {DType::kF32, DType::kBF16}, {t, d});
//
// Error message: "out: want [t=4, d=512] F32|BF16, got [4, 256] BF16".
class Dim {
 public:
  explicit Dim(const char* name, int64_t value = -1) : name_(name), value_(value) {}
  const char* name() const { return name_; }
  int64_t operator*() const { return value_; }

 private:
  friend struct DimArg;
  const char* name_;
  int64_t value_;
};

struct DimArg {
  DimArg(Dim& dim) : dim_(&dim) {}          // NOLINT: implicit, for {t, d, 512}
  DimArg(int64_t fixed) : fixed_(fixed) {}  // NOLINT
  bool match(int64_t actual) const;
  std::string text() const;

 private:
  Dim* dim_ = nullptr;
  int64_t fixed_ = 0;
};

void expect(const char* name, const ConstTensorView& view, std::initializer_list<DType> dtypes,
            std::initializer_list<DimArg> shape);

}  // namespace dsv4
