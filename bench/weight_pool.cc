#include "bench/weight_pool.h"

#include <algorithm>
#include <array>

#include "bench/op_bench.h"
#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/kbit.h"

namespace dsv4::bench {
namespace {

constexpr int64_t kPoolBytes = int64_t{1} << 30;

const std::byte* pool() {
  static const Tensor bytes = [] {
    Tensor words(DType::kI64, {kPoolBytes / 8});
#pragma omp parallel for
    for (int64_t i = 0; i < kPoolBytes / 8; ++i) {
      const uint64_t random = random_bits(1, static_cast<uint64_t>(i));
      words.as<uint64_t>()[i] = (random & 0x8787878787878787ull) | 0x3838383838383838ull;
    }
    return words;
  }();
  return bytes.view().data;
}

ConstTensorView codebook(int bits) {
  static const std::array<Tensor, kMaxKbit + 1> books = [] {
    std::array<Tensor, kMaxKbit + 1> all;
    for (int b = kMinKbit; b <= kMaxKbit; ++b) {
      const Codebook book = e4m3_codebook(b);
      Tensor& values = all[static_cast<size_t>(b)];
      values = Tensor(DType::kF32, {book.size()});
      std::copy(book.values().begin(), book.values().end(), values.as<float>());
    }
    return all;
  }();
  return books.at(static_cast<size_t>(bits));
}

}  // namespace

ConstTensorView WeightPool::take(DType dtype, int64_t rows, int64_t columns) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, {rows, columns});
  DSV4_CHECK(meta.bytes() <= kPoolBytes, "{} does not fit in the pool", to_string(meta));
  if (offset_ + meta.bytes() > kPoolBytes) offset_ = 0;
  const ConstTensorView view(meta, pool() + offset_);
  offset_ += align_up(meta.bytes(), 64);
  return view;
}

WeightView WeightPool::next(WeightFormat format, int64_t n, int64_t k, int bits) {
  WeightView w{.format = format, .n = n, .k = k, .bits = bits};
  switch (format) {
    case WeightFormat::kF32:
      w.data = take(DType::kF32, n, k);
      break;
    case WeightFormat::kBF16:
      w.data = take(DType::kBF16, n, k);
      break;
    case WeightFormat::kF16:
      w.data = take(DType::kF16, n, k);
      break;
    case WeightFormat::kFp8Block:
      w.data = take(DType::kE4M3, n, k);
      w.scale = take(DType::kE8M0, ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize));
      break;
    case WeightFormat::kMxfp4:
      w.data = take(DType::kU8, n, k / 2);
      w.scale = take(DType::kE8M0, n, k / kMxfp4Group);
      break;
    case WeightFormat::kNvfp4:
      w.data = take(DType::kU8, n, k / 2);
      w.scale = take(DType::kE4M3, n, k / kNvfp4Group);
      break;
    case WeightFormat::kKbit:
      w.data = take(DType::kI32, n, k / kKbitBlock * bits);
      w.scale = take(DType::kU8, n, k / kKbitBlock);
      w.codebook = codebook(bits);
      w.e4m3_codebook = true;
      break;
  }
  return w;
}

}  // namespace dsv4::bench
