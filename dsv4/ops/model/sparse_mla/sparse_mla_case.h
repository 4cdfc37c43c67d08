// What tests, emulated tests and the benchmark of sparse_mla.h share: the fp64 oracle and the
// builder of random arguments. The lists of tests are in test memory: every byte of a pool that no
// list names is NaN, gaps in views hold NaN or invalid indices, indices past topk_length have any
// value. The benchmark adds lists of pools of gigabytes, which several calls share.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/formats/float16.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"
#include "tests/harness/arena.h"
#include "tests/harness/compare.h"

namespace dsv4 {

// In the shapes of the arguments' out and lse. Device implementations skip indices that are not
// below their pool's rows; so does the oracle.
struct SparseMlaWant {
  std::vector<double> out;         // [b, s_q, h, d_v]
  std::vector<double> lse;         // [b, h, s_q]
  std::vector<double> max_logits;  // [b, h, s_q]
};

SparseMlaWant sparse_mla_oracle(const Context& context, const SparseMlaArgs& args);

struct SparseMlaHeadWant {
  std::vector<double> out;  // [d_v]
  double lse = 0, max_logit = 0;
};

// Some heads of one query of a request, where all of them would take too long; without the inverse
// RoPE.
std::vector<SparseMlaHeadWant> sparse_mla_oracle(const Context& context, const SparseMlaArgs& args,
                                                 int64_t request, int64_t query,
                                                 std::span<const int64_t> heads);

}  // namespace dsv4

namespace dsv4::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Rows { kPacked, kF32, kBF16 };

struct Shape {
  int64_t t = 1, h = 1, window = 0, compressed = 0;  // t: requests
  KvLayout layout{};
  Rows rows = Rows::kPacked;
  DType dtype = DType::kF32;
  double invalid = 0.2;  // share of -1 in the lists
  int64_t s_q = 1;       // queries of a request
  int64_t d_v = 0;       // 0: d
  bool lengths = false;  // lists with topk_length, some 0, below 0 or above topk
  bool strided = false;  // gaps in every view
  bool normalized = true;
  bool f32_out = false;  // for any dtype of q
  int rope_pairs = 0;    // > 0: inverse RoPE of so many pairs

  int64_t queries() const { return t * s_q; }
};

using Axes = std::vector<int64_t>;

// With gaps: padding after the last axis and after those in the middle, so that no stride follows
// from another.
inline Axes with_room(Axes shape, bool gaps) {
  if (!gaps) return shape;
  for (size_t axis = 1; axis + 1 < shape.size(); ++axis) ++shape[axis];
  shape.back() += 16;
  return shape;
}

template <class Memory>
TensorView make_whole(Memory& memory, bool output, DType dtype, const Axes& shape) {
  const auto make = [&](std::initializer_list<int64_t> dims) {
    return output ? memory.output(dtype, dims) : memory.input(dtype, dims);
  };
  if (shape.size() == 2) return make({shape[0], shape[1]});
  if (shape.size() == 3) return make({shape[0], shape[1], shape[2]});
  return make({shape[0], shape[1], shape[2], shape[3]});
}

// The view of `shape` at the start of a larger tensor.
inline TensorView front(TensorView whole, const Axes& shape) {
  for (int axis = 0; axis < whole.rank; ++axis) {
    whole = whole.slice(axis, 0, shape[static_cast<size_t>(axis)]);
  }
  return whole;
}

// An input of which every byte is 0xff: NaN, or no row.
template <class Memory>
TensorView make_input(Memory& memory, DType dtype, const Axes& shape, bool gaps) {
  const TensorView whole = make_whole(memory, false, dtype, with_room(shape, gaps));
  std::fill_n(whole.data, whole.bytes(), std::byte{0xff});
  return front(whole, shape);
}

// [b, s_q, others]
inline Axes query_axes(const Shape& shape, std::initializer_list<int64_t> others) {
  Axes axes{shape.t, shape.s_q};
  axes.insert(axes.end(), others);
  return axes;
}

// Row `i` of a view seen as [numel / last, last], with any gaps.
template <class T>
T* row_of(const TensorView& view, int64_t i) {
  T* row = view.as<T>();
  for (int axis = view.rank - 2; axis >= 0; --axis) {
    row += i % view.dim(axis) * view.stride[static_cast<size_t>(axis)];
    i /= view.dim(axis);
  }
  return row;
}

// Every byte of the pool is NaN (0xff) until a row is filled.
inline KvPool make_pool(Arena& arena, const Shape& shape, int64_t pages, int entries) {
  const int64_t width = int64_t{entries} * shape.layout.width();
  KvPool pool{.layout = shape.layout, .page_entries = entries};
  if (shape.rows == Rows::kPacked) {
    pool.pages =
        make_input(arena, DType::kU8, {pages, shape.layout.page_bytes(entries)}, shape.strided);
  } else {
    const DType dtype = shape.rows == Rows::kF32 ? DType::kF32 : DType::kBF16;
    pool.pages = make_input(arena, dtype, {pages, width}, shape.strided);
  }
  return pool;
}

inline void fill_row(const KvPool& pool, int64_t row, Rng& rng) {
  const int64_t width = pool.layout.width();
  std::vector<float> x(static_cast<size_t>(width));
  for (float& v : x) v = static_cast<float>(rng.normal());
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_kv_entry(pool.layout, x.data(), pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else if (pool.pages.dtype == DType::kF32) {
    std::copy(x.begin(), x.end(), pool.pages.row<float>(page) + entry * width);
  } else {
    std::transform(x.begin(), x.end(), pool.pages.row<uint16_t>(page) + entry * width, f32_to_bf16);
  }
}

// Indices that must not be dereferenced.
inline int32_t garbage(Rng& rng, int64_t num_rows) {
  const int64_t choices[] = {rng.below(num_rows), num_rows, INT32_MAX, INT32_MIN, -1};
  return static_cast<int32_t>(choices[rng.below(5)]);
}

// A list of `n` indices per query; pool rows that no index refers to are NaN.
inline KvList make_list(Arena& arena, Rng& rng, const Shape& shape, int64_t n, int entries) {
  const int64_t pages = ceil_div(2 * n + 3, entries);
  KvList list{.pool = make_pool(arena, shape, pages, entries), .indices = {}};
  TensorView lengths;
  if (shape.lengths) {
    lengths = arena.input(DType::kI32, {shape.t});
    for (int64_t i = 0; i < shape.t; ++i) {
      const int64_t choices[] = {rng.below(n + 1), rng.below(n + 1), 0, n + 5, -3};
      lengths.as<int32_t>()[i] = static_cast<int32_t>(choices[i % 5]);
    }
    list.topk_length = lengths;
  }
  const TensorView rows = make_input(arena, DType::kI32, query_axes(shape, {n}), shape.strided);
  for (int64_t i = 0; i < shape.queries(); ++i) {
    const int64_t request = i / shape.s_q;
    const int64_t length = shape.lengths ? lengths.as<int32_t>()[request] : n;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t row = rng.below(list.pool.num_rows());
      int32_t& id = row_of<int32_t>(rows, i)[j];
      if (j >= length) {
        id = garbage(rng, list.pool.num_rows());
      } else if (rng.uniform() < shape.invalid) {
        id = rng.uniform() < 0.5 ? -1 : INT32_MIN;
      } else {
        id = static_cast<int32_t>(row);
        fill_row(list.pool, row, rng);
      }
    }
  }
  list.indices = rows;
  return list;
}

// Whole buffers; the arguments have the views without the gaps.
struct Outputs {
  TensorView out, lse, max_logits;
};

// All but the lists. Memory: test::Arena or bench::Arena.
template <class Memory, class Random>
SparseMlaArgs random_sparse_mla(Memory& memory, Random& random, const Shape& shape,
                                Outputs& whole) {
  const int64_t d = shape.layout.width(), d_v = shape.d_v > 0 ? shape.d_v : d;
  const TensorView q =
      make_input(memory, shape.dtype, query_axes(shape, {shape.h, d}), shape.strided);
  if (!shape.strided) {
    fill_normal(q, random, 2.0);
  } else {
    for (int64_t i = 0; i < shape.queries() * shape.h; ++i) {
      const int64_t offset = shape.dtype == DType::kF32
                                 ? row_of<float>(q, i) - q.template as<float>()
                                 : row_of<uint16_t>(q, i) - q.template as<uint16_t>();
      for (int64_t c = 0; c < d; ++c) set_value(q, offset + c, 2.0 * random.normal());
    }
  }
  const TensorView sink = memory.input(DType::kF32, {shape.h});
  fill_normal(sink, random, 2.0);
  sink.as<float>()[0] = -kInfinity;
  if (shape.h > 2) sink.as<float>()[1] = kInfinity;
  const Axes out = query_axes(shape, {shape.h, d_v});
  const Axes sums{shape.t, shape.h, shape.s_q};
  const auto make_output = [&](DType dtype, const Axes& axes) {
    return make_whole(memory, true, dtype, with_room(axes, shape.strided));
  };
  whole = {make_output(shape.f32_out ? DType::kF32 : shape.dtype, out),
           make_output(DType::kF32, sums), make_output(DType::kF32, sums)};
  return {.q = q,
          .window = {},
          .compressed = {},
          .sink = sink,
          .scale = 1.f / std::sqrt(static_cast<float>(d)),
          .normalized = shape.normalized,
          .out = front(whole.out, out),
          .lse = front(whole.lse, sums),
          .max_logits = front(whole.max_logits, sums)};
}

// With lists in test memory, and the inverse RoPE where the shape wants it.
inline SparseMlaArgs make_args(Arena& arena, Rng& rng, const Shape& shape, Outputs& whole) {
  SparseMlaArgs args = random_sparse_mla(arena, rng, shape, whole);
  args.window = make_list(arena, rng, shape, shape.window, 64);
  args.compressed = make_list(arena, rng, shape, shape.compressed, 3);
  if (shape.rope_pairs > 0) {
    const TensorView positions = arena.input(DType::kI32, {shape.t, shape.s_q});
    const TensorView freqs = arena.input(DType::kF32, {shape.rope_pairs});
    fill_ints(positions, rng, 0, 1'000'000);
    fill_uniform(freqs, rng, 1e-6, 1.0);
    args.inverse_rope = {.positions = positions, .freqs = freqs};
  }
  return args;
}

// The oracle's values for a view at the start of `whole`, and around it the
// poison that has to remain.
inline std::vector<double> with_gaps(const std::vector<double>& want, const TensorMeta& view,
                                     const TensorMeta& whole) {
  std::vector<double> all(static_cast<size_t>(whole.numel()), std::nan(""));
  for (size_t i = 0; i < want.size(); ++i) {
    auto rest = static_cast<int64_t>(i), at = int64_t{0};
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      at += rest % view.dim(axis) * whole.stride[static_cast<size_t>(axis)];
      rest /= view.dim(axis);
    }
    all[static_cast<size_t>(at)] = want[i];
  }
  return all;
}

// The first valid entry of query `i` in the compressed pool: its page and index there.
inline std::pair<uint8_t*, int64_t> first_row(const SparseMlaArgs& args, int64_t i) {
  const KvList& list = args.compressed;
  const int32_t* ids = list.indices.row<int32_t>(i);
  const int32_t id =
      *std::find_if(ids, ids + list.indices.dim(-1), [](int32_t x) { return x >= 0; });
  return {list.pool.pages.row<uint8_t>(id / list.pool.page_entries), id % list.pool.page_entries};
}

// A value that f16 cannot hold, in an entry of a packed case or in the queries of all requests but
// the first. The small softmax scale keeps P of every key above 0.
enum class Large { kScale, kRope, kQuery };
inline constexpr Large kLarge[] = {Large::kScale, Large::kRope, Large::kQuery};

inline void put_large(Large large, SparseMlaArgs& args) {
  args.scale = 1e-7f;
  const KvPool& pool = args.compressed.pool;
  const auto [page, entry] = first_row(args, 1);
  uint8_t* scale = page + pool.layout.scale_offset(pool.page_entries, entry);
  uint8_t* last_rope = page + pool.layout.rope_offset(entry) + 2 * (pool.layout.rope - 1);
  const uint16_t large_bf16 = f32_to_bf16(3e5f), low_bf16 = f32_to_bf16(-3e5f);
  if (large == Large::kScale && pool.layout.v32()) {
    const float value = 600.f;
    std::memcpy(scale, &value, sizeof(value));
  } else if (large == Large::kScale) {
    scale[1] = 127 + 10;
  } else if (large == Large::kRope) {
    std::memcpy(last_rope, &low_bf16, sizeof(low_bf16));
  } else {
    for (int64_t i = 1; i < args.q.dim(0); ++i) {
      auto* q = const_cast<std::byte*>(args.q.data) + i * args.q.stride[0] * int64_t{2};
      std::memcpy(q, &large_bf16, sizeof(large_bf16));
    }
  }
}

// f32 logits are off by about 40 * 2^-24 * sum |q k| scale < 4e-5 (q of sigma 2, d = 512), and that
// is the relative error of P. Under kOfficial it also moves, rarely, a P across a rounding
// boundary: by 2^-8 of itself at most, and only where P is below the largest (which is exactly 1).
inline Tolerance tolerance(Numerics numerics, DType dtype) {
  return {.ulps = dtype == DType::kF32 ? 4.0 : 0.51,
          .rel = numerics == Numerics::kExact ? 4e-5 : 2e-3,
          .cosine = 1e-5};
}

}  // namespace dsv4::test
