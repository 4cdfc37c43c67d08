// The kernel of sample.h: a team of CTAs per row (row.cuh), in the order of the contract.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/sample/row.cuh"

namespace dsv4::sampling {

struct Inputs {
  const float* logits;  // [b, v]
  int64_t stride;
  int v, slice;  // ids of a row, and of a CTA
  int bits;      // of the largest mass
  const SamplingParams* params;
  const uint64_t* steps;
  const TokenTerm* terms;
  const int32_t* term_begin;  // null: no terms
  const uint32_t* mask;       // null: none
  int64_t mask_stride;
  float* adjusted;  // [b, v] for teams of one CTA, where a row has terms or a mask
};
struct Outputs {
  int32_t* ids;
  float* logprobs;
  int32_t* top_ids;  // null: none
  float* top_logprobs;
  int64_t top_ids_stride, top_logprobs_stride;
  int top;
};

static __device__ const Exp2Table exp2_table = kExp2Table;

// Logits as the terms and the mask of the row change them. values: [count] of the ids from begin
__device__ inline void adjust(const Inputs& in, int64_t row, const SamplingParams& how,
                              float* values, int begin, int count) {
  if (in.term_begin != nullptr) {
    const int end = in.term_begin[row + 1];
    for (int t = in.term_begin[row] + static_cast<int>(threadIdx.x); t < end; t += kThreads) {
      const TokenTerm term = in.terms[t];
      const int i = term.id - begin;
      if (i >= 0 && i < count) values[i] = adjusted(values[i], term, how);
    }
    __syncthreads();
  }
  if (in.mask != nullptr) {
    const uint32_t* mask = in.mask + row * in.mask_stride;
    for (int i = threadIdx.x; i < count; i += kThreads)
      if ((mask[(begin + i) / 32] >> (begin + i) % 32 & 1) == 0) values[i] = -INFINITY;
    __syncthreads();
  }
}

// Where the search of a pass looks for its token.
struct Search {
  bool by_count;
  uint64_t position;
};

// The searches of a draw, in their order: the cut of top_k, the cut of top_p, the draw. kept: mass
// of the tokens that are left. False: nothing to cut.
__device__ inline bool plan_search(int which, const SamplingParams& how, const Bin& total,
                                   uint64_t kept, uint64_t random, Search* search) {
  if (which == 0) {
    *search = {true, static_cast<uint64_t>(how.top_k - 1)};
    return how.top_k > 0 && static_cast<uint32_t>(how.top_k) < total.count;
  }
  if (which == 1) {
    *search = {false, mass_to_keep(how.top_p, kept) - 1};
    return how.top_p < 1;
  }
  *search = {false, position_of(random, kept)};
  return true;
}

// What a row gives.
struct Answer {
  int id = -1;        // none: the row is not valid
  float largest = 0;  // of the logits as given
  uint64_t mass = 0;  // of the logits as given, at temperature 1; 0: they are not valid
  int listed = 0;     // tokens in shared.top
};

// The first pass reads the logits as given and lists the likeliest; the second draws from the
// adjusted logits. They share their code, which a step reads from memory once.
template <int kCtas>
__device__ Answer choose(Row<kCtas>& row, const Inputs& in, const SamplingParams& how, int64_t r,
                         const float* given, float* values, int begin, int count, int wanted) {
  const bool changed =
      in.mask != nullptr || (in.term_begin != nullptr && in.term_begin[r] < in.term_begin[r + 1]);
  const bool plain = !changed && how.temperature == 1 && how.min_p == 0;
  Answer answer;
  typename Row<kCtas>::Extremes extremes{};
  for (int pass = 0; pass < 2; ++pass) {
    const bool draws = pass == 1;
    if (draws && changed) {
      if constexpr (kCtas == 1) {
        for (int i = threadIdx.x; i < count; i += kThreads) values[i] = given[i];
        __syncthreads();
      }
      adjust(in, r, how, values, begin, count);
    }
    // A cluster copies the row to shared memory when it first reads it.
    if (!draws) extremes = row.extremes(given, kCtas > 1 ? values : nullptr);
    if (draws && changed) extremes = row.extremes(values, nullptr);
    if (extremes.bad || extremes.best == 0) return answer;
    if (!draws) {
      answer.largest = extremes.largest();
      if (!plain) answer.mass = row.mass(weights_of(answer.largest, 1, 0, in.bits));
      if (wanted == 0) continue;
    } else if (how.temperature == 0) {
      answer.id = id_of(extremes.best);
      continue;
    }
    row.divide({weights_of(extremes.largest(), how.temperature, how.min_p, in.bits), !draws},
               extremes);
    const Bin total = row.total();
    if (draws && plain) answer.mass = total.mass;
    uint64_t kept = total.mass;
    Found found{};
    for (int which = 0; which < 3; ++which) {
      Search search{true, min(static_cast<uint64_t>(wanted), kept) - 1};
      if (!draws && which > 0) break;
      if (draws &&
          !plan_search(which, how, total, kept, random_bits(how.seed, in.steps[r]) >> 11, &search))
        continue;
      found = row.find(search.position, search.by_count, !draws || which == 2);
      kept = found.mass_through;
    }
    if (draws) {
      answer.id = id_of(found.item);
    } else {
      answer.listed = row.list_top(found);
    }
  }
  return answer;
}

template <int kCtas>
__device__ void sample_row(const Inputs& in, const Outputs& out, Shared& shared, float* slice) {
  using Cta = Team<kCtas>;
  const int64_t r = Cta::row();
  const int begin = min(Cta::rank() * in.slice, in.v), count = min(in.slice, in.v - begin);
  const float* const logits = in.logits + r * in.stride;
  const SamplingParams how = in.params[r];
  if (threadIdx.x < kExp2Steps) shared.exp2_table[threadIdx.x] = exp2_table[threadIdx.x];
  __syncthreads();
  float* const values = kCtas > 1 ? slice : in.adjusted + r * in.v;
  Row<kCtas> row(shared, begin, count);
  const int wanted = out.top_ids == nullptr ? 0 : min(how.top_logprobs, out.top);
  const Answer answer = choose(row, in, how, r, logits + begin, values, begin, count, wanted);
  Cta::done_reading();

  if (Cta::rank() != 0 || threadIdx.x >= kWarp) return;
  const double ln_mass = answer.mass == 0 ? 0 : ln_of_mass(answer.mass, in.bits);
  if (threadIdx.x == 0) {
    out.ids[r] = answer.id;
    out.logprobs[r] = answer.id < 0 ? NAN : logprob_of(logits[answer.id], answer.largest, ln_mass);
  }
  if (out.top_ids != nullptr && static_cast<int>(threadIdx.x) < out.top) {
    const int i = static_cast<int>(threadIdx.x);
    const bool listed = i < answer.listed;
    const Item item = listed ? shared.top[i] : 0;
    out.top_ids[r * out.top_ids_stride + i] = listed ? id_of(item) : -1;
    out.top_logprobs[r * out.top_logprobs_stride + i] =
        listed ? logprob_of(from_order_key(key_of(item)), answer.largest, ln_mass) : -INFINITY;
  }
}

// grid: kCtas a row
template <int kCtas>
__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const __grid_constant__ Inputs in, const __grid_constant__ Outputs out) {
  ptx::pdl_start();
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_smem());
  auto* const slice = reinterpret_cast<float*>(&shared + 1);
  sample_row<kCtas>(in, out, shared, slice);
  Team<kCtas>::wait_for_readers();
}

}  // namespace dsv4::sampling
