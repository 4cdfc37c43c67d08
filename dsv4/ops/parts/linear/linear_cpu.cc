#include <algorithm>
#include <vector>

#include "dsv4/ops/gemm/cpu/jobs.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel::cpu {
namespace {

// Activations are packed for at most this many tokens at a time, counted over the groups.
constexpr int64_t kCallTokens = 1536;

// Group g of the call, tokens [begin, end).
gemm::cpu::GemmJob group_job(const LinearArgs& args, int64_t g, int64_t begin, int64_t end) {
  const auto cut = [&](const auto& view) {
    const int64_t columns = view.dim(1) / args.groups;
    return view.slice(0, begin, end).slice(1, g * columns, (g + 1) * columns);
  };
  const int64_t rows = args.weight.n / args.groups;
  gemm::cpu::GemmJob job{
      .x = cut(args.x), .weight = args.weight.rows(g * rows, (g + 1) * rows), .out = cut(args.out)};
  if (!args.x_scale.empty()) job.x_scale = cut(args.x_scale);
  return job;
}

}  // namespace

HostBytes host_bytes(const LinearArgs& args) {
  return gemm::cpu::gemm_bytes(std::min(args.x.dim(0) * args.groups, kCallTokens), args.weight.k);
}

const char* reject(const Context&, const LinearArgs& args) {
  return reject_quantize(args);
}

void run(const Context&, const LinearArgs& args) {
  const int64_t tokens = args.x.dim(0);
  const int64_t step = std::max<int64_t>(1, kCallTokens / args.groups);
  for (int64_t t = 0; t < tokens; t += step) {
    std::vector<gemm::cpu::GemmJob> jobs;
    for (int64_t g = 0; g < args.groups; ++g)
      jobs.push_back(group_job(args, g, t, std::min(tokens, t + step)));
    gemm::cpu::run_gemms(jobs);
  }
}

}  // namespace dsv4::linear_kernel::cpu
