#include "dsv4/ops/gemm/cpu/jobs.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/gemm/cpu/kernel.h"

namespace dsv4::gemm::cpu {
namespace {

// Work units are blocks of one job's out. Fused: enough rows of the weight to be worth a dispatch.
// Tiled: the decoded rows, packed activations and unfinished sums of a unit fit the L2 cache.
constexpr int64_t kFusedUnitRows = kMaxBlockRows;
constexpr int64_t kTiledUnitRows = 32;
constexpr int64_t kTiledUnitTokens = 192;  // a multiple of every panel size
// Scratch areas start at multiples of a cache line.
constexpr int64_t kAlignFloats = 16;

struct Unit {
  int job;
  int64_t row, rows, token, tokens;
};

int64_t num_tokens(const GemmJob& job) {
  return job.out.dim(0);
}

// The row of x for token t of the job, as f32. out: [k]
void load_row(const GemmJob& job, int64_t t, float* out) {
  const int64_t k = job.weight.k, row = job.gather == nullptr ? t : job.gather[t];
  if (job.x.dtype != DType::kE4M3) return dsv4::cpu::load(job.x, row * job.x.row_stride(), k, out);
  const uint8_t* codes = job.x.row<uint8_t>(row);
  const uint8_t* scales = job.x_scale.row<uint8_t>(row);
  for (int64_t g = 0; g * kActivationGroup < k; ++g) {
    const int64_t start = g * kActivationGroup, count = std::min(kActivationGroup, k - start);
    dsv4::cpu::decode_e4m3(codes + start, ue8m0_to_f32(scales[g]), out + start, count);
  }
}

struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
// Uninitialized: a call writes what it reads, and zeroing would cost as much as a small GEMM.
using Floats = std::unique_ptr<float[], FreeFloats>;

Floats allocate(int64_t count) {
  constexpr size_t kCacheLine = kAlignFloats * sizeof(float);
  const auto bytes =
      static_cast<size_t>(align_up(std::max<int64_t>(count, 1), kAlignFloats)) * sizeof(float);
  Floats memory(static_cast<float*>(std::aligned_alloc(kCacheLine, bytes)));
  if (memory == nullptr) fail(ErrorCode::kResource, "cannot allocate {} floats of scratch", count);
  return memory;
}

constexpr int64_t kPackedColumns = 64;                 // padded_columns() is a multiple of at most
constexpr int64_t kMaxThreadBytes = int64_t{2} << 20;  // decoded rows and sums of a unit, at most

// One call of run_gemms: the layout of its scratch, and its two phases.
class Call {
 public:
  explicit Call(std::span<const GemmJob> jobs) : jobs_(jobs), panel_(panel_tokens()) {
    int64_t floats = 0, widest = 0;
    for (const GemmJob& job : jobs) {
      const Weights& w = weights_.emplace_back(job.weight);
      padded_.push_back(padded_columns(w));
      if (packed_before(weights_.size() - 1)) {
        start_.push_back(start_.back());
      } else {
        start_.push_back(floats);
        floats += num_tokens(job) * padded_.back();
        total_tokens_ += num_tokens(job);
      }
      end_token_.push_back(total_tokens_);
      multiply_adds_ += num_tokens(job) * job.weight.n * job.weight.k;
      widest = std::max(widest, padded_.back());
    }
    packed_ = allocate(floats);
    thread_floats_ = widest;
    for (int j = 0; j < static_cast<int>(jobs.size()); ++j) add_units(j);
    thread_floats_ = align_up(thread_floats_, kAlignFloats);
    scratch_ = allocate(omp_get_max_threads() * thread_floats_);
  }

  void run() {
#pragma omp parallel if (dsv4::cpu::worth_sharing(multiply_adds_))
    {
      float* scratch = scratch_.get() + omp_get_thread_num() * thread_floats_;
#pragma omp for
      for (int64_t t = 0; t < total_tokens_; ++t) pack_token(t, scratch);
#pragma omp for schedule(dynamic)
      for (size_t u = 0; u < units_.size(); ++u) multiply_unit(units_[u], scratch);
    }
  }

 private:
  // Whether job j uses the packed activations of the job before it, as an expert's up does.
  bool packed_before(size_t j) const {
    if (j == 0) return false;
    const GemmJob &job = jobs_[j], &before = jobs_[j - 1];
    const auto same = [](const ConstTensorView& a, const ConstTensorView& b) {
      return a.data == b.data && a.dtype == b.dtype && a.row_stride() == b.row_stride();
    };
    return weights_[j].format == weights_[j - 1].format && padded_[j] == padded_[j - 1] &&
           weights_[j].k == weights_[j - 1].k && num_tokens(job) == num_tokens(before) &&
           job.gather == before.gather && same(job.x, before.x) &&
           same(job.x_scale, before.x_scale);
  }

  void add_units(int j) {
    const GemmJob& job = jobs_[static_cast<size_t>(j)];
    const Weights& w = weights_[static_cast<size_t>(j)];
    const int64_t tokens = num_tokens(job);
    int64_t rows = tokens <= panel_ ? kFusedUnitRows : kTiledUnitRows;
    while (rows > kRowAlign && w.n < 4 * rows * omp_get_max_threads()) rows /= 2;
    for (int64_t t = 0; t < tokens; t += kTiledUnitTokens) {
      for (int64_t row = 0; row < w.n; row += rows) {
        units_.push_back(
            {j, row, std::min(rows, w.n - row), t, std::min(kTiledUnitTokens, tokens - t)});
      }
    }
    const int64_t block = std::min(tokens, kTiledUnitTokens);
    thread_floats_ = std::max(
        thread_floats_, align_up(block * rows, kAlignFloats) + scratch_floats(w, rows, block));
  }

  // Packs token t, counted over all jobs. row: scratch of k floats
  void pack_token(int64_t t, float* row) {
    const auto j = static_cast<size_t>(std::upper_bound(end_token_.begin(), end_token_.end(), t) -
                                       end_token_.begin());
    const GemmJob& job = jobs_[j];
    const int64_t token = t - (end_token_[j] - num_tokens(job)), first = token / panel_ * panel_;
    load_row(job, token, row);
    std::fill(row + job.weight.k, row + padded_[j], 0.f);
    pack(weights_[j], row,
         {.data = packed_.get() + start_[j] + first * padded_[j],
          .width = std::min(panel_, num_tokens(job) - first)},
         token - first);
  }

  void multiply_unit(const Unit& unit, float* scratch) {
    const auto j = static_cast<size_t>(unit.job);
    const GemmJob& job = jobs_[j];
    float* out = scratch;
    multiply({.weights = &weights_[j],
              .row = unit.row,
              .rows = unit.rows,
              .panels = packed_.get() + start_[j] + unit.token * padded_[j],
              .tokens = unit.tokens,
              .scratch = scratch + align_up(unit.tokens * unit.rows, kAlignFloats),
              .out = out});
    const TensorView& y = job.out;
    for (int64_t t = 0; t < unit.tokens; ++t) {
      dsv4::cpu::store(y, (unit.token + t) * y.row_stride() + unit.row, unit.rows,
                       out + t * unit.rows);
    }
  }

  std::span<const GemmJob> jobs_;
  int64_t panel_;
  std::vector<Weights> weights_;
  std::vector<int64_t> padded_;     // packed columns of each job
  std::vector<int64_t> start_;      // of each job in packed_, in floats
  std::vector<int64_t> end_token_;  // of each job, counted over all tokens to pack
  int64_t total_tokens_ = 0, multiply_adds_ = 0;
  std::vector<Unit> units_;
  Floats packed_, scratch_;
  int64_t thread_floats_ = 0;
};

}  // namespace

void run_gemms(std::span<const GemmJob> jobs) {
  Call(jobs).run();
}

HostBytes gemm_bytes(int64_t rows, int64_t k) {
  const auto item = static_cast<int64_t>(sizeof(float));
  return {.shared = rows * align_up(k, kPackedColumns) * item, .per_thread = kMaxThreadBytes};
}

}  // namespace dsv4::gemm::cpu
