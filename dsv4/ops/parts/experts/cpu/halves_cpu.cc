// The implementations cpu of halves.h, over all pairs of a chunk of tokens at once. The rows of h
// of a chunk are not neighbors: they lie in the order of all experts' pairs of the whole call.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/ops/gemm/cpu/jobs.h"
#include "dsv4/ops/parts/experts/cpu/pairs.h"
#include "dsv4/ops/parts/experts/halves.h"

namespace dsv4::experts_kernel {
namespace {

// The memory of a call grows with the pairs in flight.
constexpr int64_t kChunkTokens = 256;

// What rows_of_call() has while it lists the pairs.
int64_t rows_bytes(int64_t pairs) {
  return 3 * pairs * static_cast<int64_t>(sizeof(int32_t));
}

int64_t pairs_in_flight(const ConstTensorView& experts, int64_t t) {
  return std::min(t, kChunkTokens) * (experts.empty() ? 1 : experts.dim(1));
}

bool official(const Context& context) {
  return context.numerics == Numerics::kOfficial;
}

// The row of h of each pair of a call, [t * k] by token and slot. ids: [t, k], or empty
std::vector<int32_t> rows_of_call(const ConstTensorView& ids, int64_t t, int64_t num_experts) {
  const Pairs pairs = make_pairs(ids, t, num_experts);
  std::vector<int32_t> rows(pairs.row.size());
  for (size_t p = 0; p < rows.size(); ++p)
    rows[static_cast<size_t>(pairs.row[p])] = static_cast<int32_t>(p);
  return rows;
}

// The pairs of the stack's experts.
Pairs own_pairs(const ExpertStack& stack, const ConstTensorView& ids, int64_t t) {
  return make_pairs(ids, t, stack.size(), stack.first_id());
}

// The rows [begin, end) of the pairs of expert e, out of one for all pairs.
TensorView of_expert(const TensorView& all, const Pairs& pairs, size_t e) {
  return all.slice(0, pairs.first[e], pairs.first[e + 1]);
}

// Calls use(e) for every expert with pairs.
template <class Use>
void for_each_chosen(const Pairs& pairs, const Use& use) {
  for (size_t e = 0; e + 1 < pairs.first.size(); ++e)
    if (pairs.first[e + 1] > pairs.first[e]) use(e);
}

// args: of a chunk, with the hidden of the call. rows: of h, [t * k] of the chunk
void hidden_of(const Context& context, const ExpertsHiddenArgs& args, const int32_t* rows) {
  const Pairs pairs = own_pairs(args.stack, args.experts, args.x.dim(0));
  const auto count = std::ssize(pairs.token);
  const int64_t inner = args.hidden.dim(1);
  const DType middle = activation_dtype(context);
  const Buffer gate(middle, {count, inner}), up(middle, {count, inner});
  Buffer quantized;  // [t, d] f32, made for the first product that takes it
  const auto x_for = [&](const WeightView& w) -> ConstTensorView {
    if (!official(context) || !w.quantized_activations()) return args.x;
    if (quantized.empty()) quantized = quantized_rows(args.x);
    return quantized;
  };
  std::vector<gemm::cpu::GemmJob> jobs;
  for_each_chosen(pairs, [&](size_t e) {
    const ExpertWeights& expert = args.stack.file()[e];
    const int32_t* tokens = pairs.token.data() + pairs.first[e];
    for (const auto& [weight, out] : {std::pair(&expert.w1, &gate), std::pair(&expert.w3, &up)}) {
      jobs.push_back({.x = x_for(*weight),
                      .weight = *weight,
                      .out = of_expert(*out, pairs, e),
                      .gather = tokens});
    }
  });
  gemm::cpu::run_gemms(jobs);
  const auto row = [&](int64_t p) { return pairs.row[static_cast<size_t>(p)]; };
  const auto weight = [&](int64_t p) { return weight_of(args.weights, row(p)); };
  const auto store = [&](int64_t p, float* h) {
    dsv4::cpu::store(args.hidden, rows[row(p)] * args.hidden.row_stride(), inner, h);
  };
  GatedPairs{gate, up, weight, GateActivation::kSilu, args.swiglu_limit, official(context), store}
      .run();
}

// Row p of y to the row of its pair, by token and slot.
void spread_rows(const Pairs& pairs, const ConstTensorView& y, const TensorView& rows) {
  const int64_t n = y.dim(1), item = item_bytes(y.dtype);
  DSV4_CHECK(rows.dtype == y.dtype, "rows: {} of {}", to_string(rows), to_string(y));
  for (int64_t p = 0; p < y.dim(0); ++p)
    std::memcpy(rows.data + pairs.row[static_cast<size_t>(p)] * rows.row_stride() * item,
                y.data + p * n * item, static_cast<size_t>(n * item));
}

// Likewise. t: its tokens
void output_of(const Context& context, const ExpertsOutputArgs& args, int64_t t,
               const int32_t* rows) {
  const Pairs pairs = own_pairs(args.stack, args.experts, t);
  std::vector<int32_t> row_of, in_order(pairs.row.size());  // rows of h; of what is quantized
  for (const int32_t row : pairs.row) row_of.push_back(rows[row]);
  std::iota(in_order.begin(), in_order.end(), 0);
  const Buffer y(activation_dtype(context), {std::ssize(pairs.token), args.out().dim(1)});
  Buffer quantized;  // [pairs, I] f32
  std::vector<gemm::cpu::GemmJob> jobs;
  for_each_chosen(pairs, [&](size_t e) {
    const WeightView& weight = args.stack.file()[e].w2;
    const bool q8 = official(context) && weight.quantized_activations();
    if (q8 && quantized.empty()) quantized = quantized_rows(args.hidden, row_of);
    jobs.push_back({.x = q8 ? ConstTensorView(quantized) : args.hidden,
                    .weight = weight,
                    .out = of_expert(y, pairs, e),
                    .gather = (q8 ? in_order : row_of).data() + pairs.first[e]});
  });
  gemm::cpu::run_gemms(jobs);
  args.rows.empty() ? add_in_order(pairs, int64_t{0}, y, args.acc)
                    : spread_rows(pairs, y, args.rows);
}

const char* reject_images(const ExpertStack& stack) {
  return stack.is_image() ? "kernel images of experts" : nullptr;
}

// The ids of a chunk of tokens.
ConstTensorView ids_of(const ConstTensorView& view, int64_t begin, int64_t end) {
  return view.empty() ? view : view.slice(0, begin, end);
}

template <class Chunk>
void for_each_chunk(int64_t t, const Chunk& chunk) {
  for (int64_t begin = 0; begin < t; begin += kChunkTokens)
    chunk(begin, std::min(t, begin + kChunkTokens));
}

}  // namespace
}  // namespace dsv4::experts_kernel

namespace dsv4::experts_hidden_kernel::cpu {

using namespace experts_kernel;  // NOLINT: the two halves share them

HostBytes host_bytes(const ExpertsHiddenArgs& args) {
  const int64_t d = args.x.dim(1), pairs = pairs_in_flight(args.experts, args.x.dim(0));
  HostBytes bytes = gemm::cpu::gemm_bytes(2 * pairs, d);
  const int64_t x = std::min(args.x.dim(0), kChunkTokens) * d;
  bytes.shared += (x + 2 * pairs * args.hidden.dim(1)) * static_cast<int64_t>(sizeof(float)) +
                  32 * pairs + rows_bytes(args.hidden.dim(0));
  return bytes;
}

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* const why = reject_mirrors(context, args)) return why;
  return reject_images(args.stack);
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  check_ids(args.experts, args.stack.num_ids());
  if (args.hidden.numel() == 0) return;
  const int64_t t = args.x.dim(0), k = args.hidden.dim(0) / t;
  const std::vector<int32_t> rows = rows_of_call(args.experts, t, args.stack.num_ids());
  for_each_chunk(t, [&](int64_t begin, int64_t end) {
    ExpertsHiddenArgs part = args;
    part.x = args.x.slice(0, begin, end);
    part.experts = ids_of(args.experts, begin, end);
    part.weights = ids_of(args.weights, begin, end);
    hidden_of(context, part, rows.data() + begin * k);
  });
}

}  // namespace dsv4::experts_hidden_kernel::cpu

namespace dsv4::experts_output_kernel::cpu {

using namespace experts_kernel;  // NOLINT: the two halves share them

HostBytes host_bytes(const ExpertsOutputArgs& args) {
  const int64_t inner = args.hidden.dim(1), pairs = pairs_in_flight(args.experts, args.tokens());
  HostBytes bytes = gemm::cpu::gemm_bytes(pairs, inner);
  bytes.shared += pairs * (inner + args.out().dim(1)) * static_cast<int64_t>(sizeof(float)) +
                  40 * pairs + rows_bytes(args.hidden.dim(0));
  return bytes;
}

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (!args.rows.empty() && args.rows.dtype != activation_dtype(context))
    return "rows of another dtype";
  return reject_images(args.stack);
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  check_ids(args.experts, args.stack.num_ids());
  if (args.out().numel() == 0) return;
  const bool sums = args.rows.empty();
  if (sums && !args.add) fill_zero(args.acc);
  const int64_t t = args.tokens(), k = args.hidden.dim(0) / t;
  const std::vector<int32_t> rows = rows_of_call(args.experts, t, args.stack.num_ids());
  for_each_chunk(t, [&](int64_t begin, int64_t end) {
    ExpertsOutputArgs part = args;
    part.experts = ids_of(args.experts, begin, end);
    if (sums) part.acc = args.acc.slice(0, begin, end);
    if (!sums) part.rows = args.rows.slice(0, begin * k, end * k);
    output_of(context, part, end - begin, rows.data() + begin * k);
  });
  if (sums) add_addend(args.addend, args.acc);
}

}  // namespace dsv4::experts_output_kernel::cpu

namespace dsv4::experts_sum_kernel::cpu {

using namespace experts_kernel;  // NOLINT: it goes on where a half ends

HostBytes host_bytes(const ExpertsSumArgs& args) {
  return {.shared = 3 * args.rows.dim(0) * static_cast<int64_t>(sizeof(int32_t)) +
                    args.num_experts * int64_t{2 * sizeof(int64_t)},
          .per_thread = args.acc.dim(1) * static_cast<int64_t>(sizeof(float))};
}

void run(const Context&, const ExpertsSumArgs& args) {
  check_ids(args.experts, args.num_experts);
  if (args.acc.numel() == 0) return;
  if (!args.add) fill_zero(args.acc);
  const Pairs pairs = make_pairs(args.experts, args.acc.dim(0), args.num_experts);
  add_in_order(pairs, pairs.row.data(), args.rows, args.acc);
  add_addend(args.addend, args.acc);
}

}  // namespace dsv4::experts_sum_kernel::cpu
