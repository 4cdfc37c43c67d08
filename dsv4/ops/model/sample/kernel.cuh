// The kernel of sample.h: a team of CTAs per row (row.cuh), in the order of the contract.
//
// A step reads the instructions from memory once, so the code is written to be small: searches and
// passes are loops around one copy of their code.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/model/sample/row.cuh"

namespace dsv4::sample_kernel {

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

// The cuts of a draw, in their order: top_k, then top_p. kept: mass of the tokens that are left.
// False: nothing to cut.
struct Search {
  bool by_count;
  uint64_t position;
};
__device__ inline bool plan_cut(int which, const SamplingParams& how, const Bin& total,
                                uint64_t kept, Search* search) {
  if (which == 0) {
    *search = {true, static_cast<uint64_t>(how.top_k - 1)};
    return how.top_k > 0 && static_cast<uint32_t>(how.top_k) < total.count;
  }
  *search = {false, mass_to_keep(how.top_p, kept) - 1};
  return how.top_p < 1;
}

// What a row gives.
struct Answer {
  int id = -1;        // none: the row is not valid
  float largest = 0;  // of the logits as given
  uint64_t mass = 0;  // of the logits as given, at temperature 1; 0: they are not valid
  int listed = 0;     // tokens in shared.top
  bool mine = false;  // this warp writes id and logprob
};

// drawn, given: weights of the draw, and of the logits as given, but for their largest.
// The first pass reads the logits as given and lists the likeliest; the second draws from the
// adjusted logits.
template <int kCtas>
__device__ Answer choose(Row<kCtas>& row, const Inputs& in, const SamplingParams& how, int64_t r,
                         Weights drawn, Weights given, const Slice<kCtas>& slice, float* values,
                         int top) {
  const bool changed =
      in.mask != nullptr || (in.term_begin != nullptr && in.term_begin[r] < in.term_begin[r + 1]);
  const bool plain = !changed && how.temperature == 1 && how.min_p == 0;
  const bool greedy = how.temperature == 0, cuts = how.top_k > 0 || how.top_p < 1;
  Answer answer;
  answer.mine = Team<kCtas>::rank() == 0 && threadIdx.x < kWarp;
  typename Row<kCtas>::Extremes extremes{};
  for (int pass = 0; pass < 2; ++pass) {
    const bool second = pass == 1, draws = second && !greedy;
    if (second && changed) {
      if constexpr (kCtas == 1) {
        for (int i = threadIdx.x; i < slice.count; i += kThreads) values[i] = slice.values[i];
        __syncthreads();
        row.use(values);
      }
      adjust(in, r, how, values, slice.begin, slice.count);
    }
    if (!second || changed) extremes = row.extremes();
    if (extremes.bad || extremes.best == 0) return answer;
    if (!second) answer.largest = extremes.largest();
    if (second && greedy) answer.id = id_of(extremes.best);

    drawn.largest = extremes.largest(), given.largest = answer.largest;
    Item last = 0;
    if (draws ? cuts : !second && top > 0) {
      row.divide({drawn, !draws}, extremes);
      const Bin total = row.total();
      if (plain && draws) answer.mass = total.mass;
      if (!draws) answer.listed = min(top, static_cast<int>(total.count));
      uint64_t kept = total.mass;
      for (int which = 0; which < (draws ? 2 : 1); ++which) {
        Search search{true, static_cast<uint64_t>(answer.listed - 1)};
        if (draws && !plan_cut(which, how, total, kept, &search)) continue;
        const Found found = row.find(search.position, search.by_count);
        last = found.item, kept = found.mass_through;
      }
      if (!draws) row.list_top(last, answer.listed);
    }

    // The row as given is read before it changes, or with the draw.
    const bool wants_given = (second ? !changed : changed) && !(plain && !greedy);
    if (!wants_given && !draws) continue;
    const typename Row<kCtas>::Wanted wanted{wants_given, draws, given, drawn, last};
    const auto* const masses = row.masses(wanted);
    const auto sum = row.sum_of(masses);
    if (wants_given) answer.mass = sum.b;
    if (!draws) continue;
    if (plain && !cuts) answer.mass = sum.a;
    answer.id =
        row.draw(wanted, masses, position_of(random_bits(how.seed, in.steps[r]) >> 11, sum.a));
    answer.mine = answer.id >= 0;
  }
  return answer;
}

template <int kCtas>
__device__ void write_answer(const Inputs& in, const Outputs& out, const Answer& answer, int64_t r,
                             const Item* top) {
  const int lane = threadIdx.x % kWarp;
  const double ln_mass = answer.mass == 0 ? 0 : ln_of_mass(answer.mass, in.bits);
  if (answer.mine && lane == 0) {
    const float* const logits = in.logits + r * in.stride;
    out.ids[r] = answer.id;
    out.logprobs[r] = answer.id < 0 ? NAN : logprob_of(logits[answer.id], answer.largest, ln_mass);
  }
  if (Team<kCtas>::rank() != 0 || threadIdx.x >= kWarp || lane >= out.top) return;
  const bool listed = lane < answer.listed;
  const Item item = listed ? top[lane] : 0;
  out.top_ids[r * out.top_ids_stride + lane] = listed ? id_of(item) : -1;
  out.top_logprobs[r * out.top_logprobs_stride + lane] =
      listed ? logprob_of(from_order_key(key_of(item)), answer.largest, ln_mass) : -INFINITY;
}

// grid: kCtas a row
template <int kCtas>
__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const __grid_constant__ Inputs in, const __grid_constant__ Outputs out) {
  ptx::griddepcontrol_launch_dependents();
  using Cta = Team<kCtas>;
  auto& shared = *reinterpret_cast<Shared<kCtas>*>(ptx::dynamic_smem());
  auto* const copy = reinterpret_cast<float*>(&shared + 1);
  const int64_t r = Cta::row();
  const int begin = min(Cta::rank() * in.slice, in.v), count = min(in.slice, in.v - begin);
  const float* const given = in.logits + r * in.stride + begin;
  const Slice<kCtas> slice{kCtas > 1 ? copy : given, begin, count};
  Cta team(shared.team);
  Row<kCtas> row(shared, team, slice);
  if (threadIdx.x < kExp2Steps) shared.exp2_table[threadIdx.x] = exp2_table[threadIdx.x];
  if (threadIdx.x < kCtas * kMaxTopLogprobs) shared.top_sent[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.top_taken = 0;
  team.start();
  ptx::griddepcontrol_wait();
  SliceCopy<kCtas> copying(team, given, copy, count);
  // While the copy arrives.
  const SamplingParams how = in.params[r];
  const Weights drawn = weights_of(0, how.temperature, how.min_p, in.bits),
                as_given = weights_of(0, 1, 0, in.bits);
  row.prepare();
  copying.wait();
  team.wait_for_start();
  const int top = out.top_ids == nullptr ? 0 : min(how.top_logprobs, out.top);
  const Answer answer = choose(row, in, how, r, drawn, as_given, slice,
                               kCtas > 1 ? copy : in.adjusted + r * in.v, top);
  if (answer.mine || (Cta::rank() == 0 && threadIdx.x < kWarp))
    write_answer<kCtas>(in, out, answer, r, shared.top);
}

}  // namespace dsv4::sample_kernel
