// Random data of the stream kernels, the plain reference of one CTA on the host, and the launch
// with its check.

#pragma once

#include <cstring>
#include <type_traits>

#include "bench/micro/stream.cuh"

namespace dsv4::micro {

template <class T>
__global__ void random_x(T* x, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    x[i] = static_cast<T>(gaussian(static_cast<uint64_t>(i)));
}

// Codes are random bits; scale bytes are D::random_scale().
template <class D>
__global__ void random_units(unsigned char* codes, int64_t units) {
  constexpr int kBytes = 512 * D::kBits + 128;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < units * kBytes;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t random = hash(static_cast<uint64_t>(i) + (uint64_t{1} << 40));
    const bool is_scale = i % kBytes >= 512 * D::kBits;
    codes[i] = is_scale ? D::random_scale(random) : static_cast<unsigned char>(random);
  }
}

template <class D>
std::vector<uint32_t> table_of() {
  std::vector<uint32_t> table(kTableWords);
  D::fill_table(table.data());
  return table;
}

// The values of a unit: w[16][256], by `value(code, scale byte)`.
template <class D, class Value>
void decode_unit(const unsigned char* unit, const Value& value, double (*w)[256]) {
  const KbitImage image{.n = 16, .k = 256, .bits = D::kBits};
  for (int step = 0; step < 4; ++step) {
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t words[kMaxKbit];
      uint8_t codes[32];
      for (int i = 0; i < D::kBits; ++i)
        std::memcpy(&words[i], unit + KbitImage::word_offset(lane, step * D::kBits + i), 4);
      unpack_kbit_lane(words, D::kBits, codes);
      for (int e = 0; e < 32; ++e) {
        const KbitFragment at = kbit_fragment(lane, e);
        const int column = step * 64 + at.column;
        w[at.row][column] = value(codes[e], unit[image.scale_offset(at.row, column / 32)]);
      }
    }
  }
}

template <class C>
struct Data {
  using D = typename C::D;
  using T = typename D::Type;
  static constexpr int kItemBytes = C::kStrips * kUnitsPerItem * C::kUnitBytes;
  int ctas, pool;
  Buffer<unsigned char> codes;
  Buffer<T> x;
  Buffer<int> rows;
  Buffer<uint32_t> table;
  Buffer<float> out;
  Buffer<Span> spans;

  explicit Data(int sms, int items)
      : ctas(sms),
        pool(items),
        codes(size_t{static_cast<size_t>(items)} * kItemBytes),
        x(size_t{kTokens} * kColumns),
        rows(size_t{kExperts} * C::kN),
        table(kTableWords),
        out(static_cast<size_t>(sms) * C::kRows * C::kN),
        spans(static_cast<size_t>(sms)) {
    random_x<<<1024, 256>>>(x.data, static_cast<int64_t>(x.count));
    random_units<D><<<2048, 256>>>(codes.data, static_cast<int64_t>(codes.count) / C::kUnitBytes);
    MICRO_CUDA(cudaGetLastError());
    std::vector<int> tokens(rows.count);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(hash(i) % kTokens);
    rows.set(tokens);
    table.set(table_of<D>());
    MICRO_CUDA(cudaDeviceSynchronize());
  }
  StreamParams params(int units) {
    return {.codes = codes.data,
            .x = reinterpret_cast<const unsigned char*>(x.data),
            .rows = rows.data,
            .table = table.data,
            .pool = pool,
            .units = units,
            .lanes = 1,
            .copy_codes = true,
            .copy_x = true,
            .out = out.data,
            .spans = spans.data};
  }

  // The result of a CTA, [kRows, kN]. ring: columns and codes move on; else the first three units
  // and the first four steps come again and again.
  // factor(column of x, n) multiplies columns.
  template <class Value>
  std::vector<double> reference(const StreamParams& p, int cta, bool ring, const Value& value) {
    return reference(p, cta, ring, value, [](int, int) { return 1.f; });
  }
  template <class Value, class Factor>
  std::vector<double> reference(const StreamParams& p, int cta, bool ring, const Value& value,
                                const Factor& factor) {
    std::vector<double> sums(size_t{C::kRows} * C::kN);
    std::vector<float> columns(size_t{256} * C::kN);
    double w[16][256];
    const std::vector<int> tokens = rows.host();
    for (int u = 0; u < p.units; ++u) {
      const int moved = ring ? u : 0, expert = expert_at(cta, ctas, moved);
      for (int n = 0; n < C::kN; ++n) {
        const int token = tokens[static_cast<size_t>(expert * C::kN + n)];
        const std::vector<T>& row = token_row(token);
        for (int i = 0; i < 256; ++i) {
          const int at = ring ? u % kUnitsPerItem * 256 + i : (u * 256 + i) % (4 * D::kStepColumns);
          columns[static_cast<size_t>(column_at<D>(i)) * C::kN + n] =
              static_cast<float>(row[static_cast<size_t>(at)]) * factor(at, n);
        }
      }
      const int64_t first = unit_at<C>(p, cta, ctas, ring ? u : u % C::kCodeStages);
      for (int strip = 0; strip < C::kStrips; ++strip) {
        const auto unit =
            codes.host(static_cast<size_t>(first + int64_t{strip} * kUnitsPerItem * C::kUnitBytes),
                       C::kUnitBytes);
        decode_unit<D>(unit.data(), value, w);
        for (int r = 0; r < 16; ++r) {
          double* const to = sums.data() + (strip * 16 + r) * C::kN;
          for (int k = 0; k < 256; ++k) {
            const float* const from = columns.data() + k * C::kN;
            for (int n = 0; n < C::kN; ++n) to[n] += w[r][k] * from[n];
          }
        }
      }
    }
    return sums;
  }

 private:
  const std::vector<T>& token_row(int token) {
    if (cached_.empty()) cached_.resize(kTokens);
    auto& row = cached_[static_cast<size_t>(token)];
    if (row.empty()) row = x.host(static_cast<size_t>(token) * kColumns, kColumns);
    return row;
  }
  std::vector<std::vector<T>> cached_;
};

template <class C, bool kRing, int kWork>
void start_stream(const StreamParams& p, int ctas) {
  constexpr int kShared = std::max<int>(sizeof(typename C::Shared), 120 << 10);  // one CTA an SM
  static_assert(sizeof(typename C::Shared) <= 227 << 10);
  MICRO_CUDA(cudaFuncSetAttribute(stream_kernel<C, kRing, kWork>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  stream_kernel<C, kRing, kWork><<<ctas, C::kThreads, kShared>>>(p);
  MICRO_CUDA(cudaGetLastError());
}

// The error of CTA 0 and of the last one; the larger.
template <class C, bool kRing>
double check_stream(Data<C>& data, StreamParams p, int units) {
  p.units = units;
  MICRO_CUDA(cudaMemset(data.out.data, 0xff, data.out.count * sizeof(float)));
  start_stream<C, kRing, kAll>(p, data.ctas);
  MICRO_CUDA(cudaDeviceSynchronize());
  const std::vector<uint32_t> table = data.table.host();
  double worst = 0;
  for (const int cta : {0, data.ctas - 1}) {
    const auto expected = data.reference(p, cta, kRing, [&](uint8_t code, uint8_t scale) {
      return C::D::weight(code, scale, table.data());
    });
    const size_t count = size_t{C::kRows} * C::kN;
    worst = std::max(worst, relative_error(data.out.host(cta * count, count), expected));
  }
  return worst;
}

// f16 products have f32 sums; those of e4m3 keep about 14 bits.
template <class D>
constexpr double error_limit() {
  return sizeof(typename D::Type) == 2 ? 1e-4 : 5e-3;
}

template <class C>
void report(Line& line, const Timing& t, int units, int ctas) {
  const double weights = double{C::kRows} * 256 * units;
  line.number("n", C::kN).number("warpgroups", C::kGroups).number("m64", C::kBlocks);
  line.number("weights_clk_sm", weights / t.cycles);
  line.number("tflops", 2 * weights * C::kN * ctas / t.us * 1e-6);
  line.number("mma_share", weights / t.cycles * C::kN / (2048 * 2 / sizeof(typename C::D::Type)));
  line.number("us", t.us).number("mhz", t.mhz);
}

template <class C, bool kRing, int kWork>
void time_stream(Data<C>& data, const StreamParams& p, Line& line) {
  const Timing t = measure([&] { start_stream<C, kRing, kWork>(p, data.ctas); }, &data.spans);
  report<C>(line, t, p.units, data.ctas);
}

inline int multiprocessors() {
  int device = 0, count = 0;
  MICRO_CUDA(cudaGetDevice(&device));
  MICRO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace dsv4::micro
