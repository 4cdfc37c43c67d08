// The implementation cpu of expert_linear.h: the products of many experts in one list of jobs.

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/cpu/jobs.h"
#include "dsv4/ops/parts/expert_linear/expert_linear.h"

namespace dsv4::expert_linear_kernel::cpu {
namespace {

// Activations are packed for at most this many rows at a time.
constexpr int64_t kCallRows = 1536;

// Called before anything is written.
void check_offsets(const ExpertLinearArgs& args) {
  const int32_t* offsets = args.offsets.as<int32_t>();
  const int64_t rows = args.x.dim(0), experts = std::ssize(args.weights);
  DSV4_CHECK(offsets[0] == 0 && offsets[experts] == rows,
             "offsets run from {} to {}: want 0 to the {} rows of x", offsets[0], offsets[experts],
             rows);
  for (int64_t e = 0; e < experts; ++e) {
    DSV4_CHECK(offsets[e] <= offsets[e + 1], "offsets[{}] is {}, after {}", e + 1, offsets[e + 1],
               offsets[e]);
  }
}

}  // namespace

HostBytes host_bytes(const ExpertLinearArgs& args) {
  return gemm::cpu::gemm_bytes(std::min(args.x.dim(0), kCallRows), args.x.dim(1));
}

void run(const Context&, const ExpertLinearArgs& args) {
  check_offsets(args);
  const int32_t* offsets = args.offsets.as<int32_t>();
  const int64_t rows = args.x.dim(0);
  size_t expert = 0;
  for (int64_t begin = 0; begin < rows; begin += kCallRows) {
    const int64_t end = std::min(rows, begin + kCallRows);
    std::vector<gemm::cpu::GemmJob> jobs;
    for (int64_t row = begin; row < end;) {
      while (offsets[expert + 1] <= row) ++expert;
      const int64_t last = std::min<int64_t>(end, offsets[expert + 1]);
      jobs.push_back({.x = args.x.slice(0, row, last),
                      .weight = args.weights[expert],
                      .out = args.out.slice(0, row, last)});
      row = last;
    }
    gemm::cpu::run_gemms(jobs);
  }
}

}  // namespace dsv4::expert_linear_kernel::cpu
