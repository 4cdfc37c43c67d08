// What the micro-benchmarks share: checked CUDA calls, random bytes, waits that give up, cycles and
// times of a launch, lines of results.
//
// A part prints one JSON object a line; main.cu runs every part as a process of its own, since a
// trap (a wait that gave up) makes the CUDA context of its process useless.

#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::micro {

#define MICRO_CUDA(call)                                                 \
  do {                                                                   \
    const cudaError_t micro_error = (call);                              \
    if (micro_error != cudaSuccess) {                                    \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(micro_error));                     \
      std::printf("{\"error\": \"%s:%d %s\"}\n", __FILE__, __LINE__,     \
                  cudaGetErrorString(micro_error));                      \
      std::exit(3);                                                      \
    }                                                                    \
  } while (0)

inline constexpr int kWarpLanes = 32;

// mbarrier wait that traps after some seconds in place of hanging the card.
__device__ inline void bounded_wait(ptx::Mbarrier& barrier, uint32_t parity) {
#pragma unroll 1
  for (int i = 0; i < 1 << 22; ++i) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(ptx::smem_address(&barrier)), "r"(parity)
        : "memory");
    if (done != 0) return;
  }
  __trap();
}

__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected)::"memory");
  return elected != 0;
}

__device__ inline uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__host__ __device__ inline uint32_t hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x ^ (x >> 31));
}
// About Gaussian, standard deviation 1: sum of four uniforms.
__host__ __device__ inline float gaussian(uint64_t i) {
  const uint32_t h = hash(i * 2 + 1), l = hash(i * 2 + 0x9e3779b97f4a7c15ull);
  const int sum = static_cast<int>((h & 0xffff) + (h >> 16) + (l & 0xffff) + (l >> 16));
  return static_cast<float>(sum - 2 * 0xffff) * (1.f / 37837.f);
}

// What a CTA stores about itself.
struct Span {
  int64_t cycles, nanoseconds;
};

template <class T>
struct Buffer {
  T* data = nullptr;
  size_t count = 0;
  explicit Buffer(size_t n) : count(n) { MICRO_CUDA(cudaMalloc(&data, n * sizeof(T))); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
  std::vector<T> host(size_t first, size_t n) const {
    std::vector<T> values(n);
    MICRO_CUDA(cudaMemcpy(values.data(), data + first, n * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<T> host() const { return host(0, count); }
  void set(const std::vector<T>& values) {
    MICRO_CUDA(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
};

struct Timing {
  double us = 0;      // median of events
  double cycles = 0;  // mean over CTAs, median launch
  double mhz = 0;     // cycles over nanoseconds of the same CTAs
};

// Launches `repeats` times after a first one and takes medians.
inline Timing measure(const std::function<void()>& launch, const Buffer<Span>* spans,
                      int repeats = 7) {
  cudaEvent_t begin, end;
  MICRO_CUDA(cudaEventCreate(&begin));
  MICRO_CUDA(cudaEventCreate(&end));
  launch();
  MICRO_CUDA(cudaGetLastError());
  MICRO_CUDA(cudaDeviceSynchronize());
  std::vector<Timing> all;
  for (int i = 0; i < repeats; ++i) {
    MICRO_CUDA(cudaEventRecord(begin));
    launch();
    MICRO_CUDA(cudaEventRecord(end));
    MICRO_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MICRO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    Timing t{.us = ms * 1e3};
    if (spans != nullptr) {
      double ns = 0;
      for (const Span& s : spans->host())
        t.cycles += static_cast<double>(s.cycles), ns += static_cast<double>(s.nanoseconds);
      t.mhz = t.cycles / ns * 1e3;
      t.cycles /= static_cast<double>(spans->count);
    }
    all.push_back(t);
  }
  MICRO_CUDA(cudaEventDestroy(begin));
  MICRO_CUDA(cudaEventDestroy(end));
  std::ranges::sort(all, {}, &Timing::us);
  return all[all.size() / 2];
}

// norm(a - b) / norm(b); NaN counts as infinite.
inline double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d, size += b[i] * b[i];
  }
  const double e = std::sqrt(difference / size);
  return std::isfinite(e) ? e : 1e30;
}

// One result: a line of JSON on stdout.
class Line {
 public:
  Line(const std::string& part, const std::string& name) { text("part", part).text("case", name); }
  ~Line() {
    std::printf("{%s}\n", fields_.c_str());
    std::fflush(stdout);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  Line& text(const char* key, const std::string& value) { return raw(key, "\"" + value + "\""); }
  Line& number(const char* key, double value) {
    char digits[40];
    std::snprintf(digits, sizeof(digits), "%.6g", std::isfinite(value) ? value : -1.0);
    return raw(key, digits);
  }
  // 0: the table of section 5.1 has no number for the case.
  Line& expected(double value) { return value > 0 ? number("expected", value) : *this; }
  Line& check(double error, double limit) {
    number("relative_error", error);
    return raw("right", error <= limit ? "true" : "false");
  }

 private:
  Line& raw(const char* key, const std::string& value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }
  std::string fields_;
};

// Parts, called by main.cu in a process each.
void rs_f16();     // 1 and 2
void sustained();  // 3
void sustained_e4m3();
void rs_e4m3();                // 4
void index_tile();             // 5
void post_mix();               // 6
void feed_f16(bool clusters);  // A: ways to feed x'
void feed_token(bool clusters);
void feed_promoted(bool clusters);  // B
void index_forms();                 // 5, second try

}  // namespace dsv4::micro
