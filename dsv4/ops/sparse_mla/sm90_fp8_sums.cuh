// The end of a query's softmax: sums of weights -> statistics, and what values are multiplied with.
//
//   out = f sum_j w_j k_j     w_j = 2^(z_j - m),  f = 1 / (sum_j w_j + 2^(sink - m))
//   lse = ln(sum_j w_j) + m
//
// Of a query that is cut, part c has m_c, the sum s_c of its weights and O_c. The blocks tell each
// other the first two (and a divisor) while the last values are multiplied, so that a part leaves
// its block with its weight among all of them and merging is an addition. f16 holds that: it is
// less than a mean of values, or is divided by what makes it so; rounding costs each part 2^-11 of
// itself, and 2^-25 below 2^-14.
//
//   out = f s sum_c (O_c 2^(m_c - m) / s)     m = max_c m_c,  s = sum_c s_c 2^(m_c - m)

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_shared.cuh"

namespace dsv4::sm90_fp8 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

__device__ inline float sink_of(const Params& p, const Work& work, int head) {
  return p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
}

// The statistics of one head; reference and largest: log2.
__device__ inline void store_statistics(const Params& p, const Work& work, int head,
                                        float reference, float sum, float largest) {
  const bool any = sum > 0.f || sum != sum;
  if (p.lse != nullptr)
    p.lse[offset_of(p.lse_at, work, head)] = any ? (reference + log2f(sum)) * kLn2 : INFINITY;
  if (p.max_logits != nullptr)
    p.max_logits[offset_of(p.max_at, work, head)] = any ? largest * kLn2 : -INFINITY;
}

// What a head's sum of values is multiplied with. largest is only looked at if asked for.
__device__ inline float output_factor(const Params& p, float reference, float sum, float largest,
                                      float sink) {
  const bool any = sum > 0.f || sum != sum;
  if (!any) return 0.f;
  if (!p.normalized) return ptx::ex2_approx_ftz(reference - largest);
  return __fdividef(1.f, sum + ptx::ex2_approx_ftz(sink * kLog2E - reference));
}

// Of the weights of a head in this block.
template <int kHeads>
__device__ float sum_of(const Item<kHeads>& item, int head) {
  float sum = 0.f;
  for (int w = 0; w < 8; ++w) sum += item.sums[w][head];
  return sum;
}

constexpr int kSummaryBytes = 12;  // that blocks tell each other of a head
template <class Row, int kHeads>
__device__ void tell_summary(const Params& p, Shared<Row, kHeads>& shared, int head,
                             float reference, float sum, float divisor) {
  const int part = chunk_of_block(p);
  const uint2 sums{__float_as_uint(sum != 0.f ? reference : -INFINITY), __float_as_uint(sum)};
  ptx::Mbarrier& told = shared.summaries_full;
  for (int block = 0; block < p.chunks; ++block) {
    ptx::st_async(&shared.part_sums[part][head], block, sums, told);
    ptx::st_async(&shared.part_divisors[part][head], block, __float_as_uint(divisor), told);
  }
}

// The softmax over all parts of a query, by the gathering warpgroup.
template <class Row, int kHeads>
struct Weighing {
  const Params& p;
  Shared<Row, kHeads>& shared;
  int head;  // number of the thread; what is no head only waits

  __device__ void run() const {
    const Item<kHeads>& item = shared.items[0];
    const Work& work = item.work;
    const bool exists = head < kHeads && work.first_head + head < p.heads;
    const float sink = exists ? sink_of(p, work, head) : -INFINITY;
    if (head == 0) {
      shared.summaries_full.expect_tx(static_cast<uint32_t>(work.parts * kHeads * kSummaryBytes));
      shared.summaries_full.arrive();
    }
    shared.sums_full.wait(0);
    const bool is_exact = item.too_large == work.item + 1;  // who computes so tells the summary
    if (!is_exact && chunk_of_block(p) < work.parts && head < kHeads) {
      const float reference = item.reference[reference_place<kHeads>(head)];
      tell_summary(p, shared, head, reference, sum_of(item, head), 1.f);
    }
    shared.summaries_full.wait_acquire_cluster(0);
    const int holder = p.invariant ? find_holder(work.parts) : kSeveral;
    if (head == 0) shared.holder = holder;
    float reference = 0.f, sum = 0.f;
    if (head < kHeads) set_factors(work, is_exact, holder, sink, reference, sum);
    shared.weighed.arrive();
    if (exists && chunk_of_block(p) == 0)
      store_statistics(p, work, head, reference, sum, reference);
  }

 private:
  // reference, sum: of all parts. They keep their largest logit as the reference where it is asked
  // for.
  __device__ void set_factors(const Work& work, bool is_exact, int holder, float sink,
                              float& reference, float& sum) const {
    float references[kMaxChunks], sums[kMaxChunks], divisors[kMaxChunks];
    reference = -INFINITY;
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      const uint2 told = shared.part_sums[c][head];
      const float divisor = __uint_as_float(shared.part_divisors[c][head]);
      const bool exists = c < work.parts;
      references[c] = exists ? __uint_as_float(told.x) : -INFINITY;
      sums[c] = exists ? __uint_as_float(told.y) : 0.f;
      divisors[c] = exists ? divisor : 1.f;
      reference = fmaxf(reference, references[c]);
    }
    const float base = reference == -INFINITY ? 0.f : reference;
    const int mine = chunk_of_block(p);
    float my_weight = 0.f, large = 0.f;
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      const float weight = ptx::ex2_approx_ftz(references[c] - base);
      my_weight = c == mine ? weight : my_weight;
      sum = fmaf(sums[c], weight, sum);
      if (divisors[c] > 1.f) large = fmaxf(large, divisors[c] * weight * sums[c]);
    }
    // What the parts of this weight need, one for all of them.
    const float divisor = fmaxf(1.f, __fdividef(large, sum));
    const float factor = output_factor(p, reference, sum, reference, sink);
    const float share = my_weight == 0.f ? 0.f : __fdividef(my_weight, sum);
    const float divided = __fdividef(1.f, divisor);
    // Who computes exactly multiplies twice: f32 may not hold the product.
    shared.factor[0][head] = holder == mine ? factor : is_exact ? share : share * divided;
    shared.factor[1][head] = holder == mine ? factor : is_exact ? divided : share * divided;
    shared.last_factor[head] = factor * sum * divisor;
  }

  // The only part that has keys, 0 if none has, or kSeveral.
  __device__ int find_holder(int parts) const {
    int holder = 0, count = 0;
    for (int c = 0; c < parts; ++c) {
      const bool has_keys = head < kHeads && __uint_as_float(shared.part_sums[c][head].y) != 0.f;
      if (ptx::barrier_red_or(kBarrierGather, kGroupThreads, has_keys)) holder = c, ++count;
    }
    return count > 1 ? kSeveral : holder;
  }
};

}  // namespace dsv4::sm90_fp8
