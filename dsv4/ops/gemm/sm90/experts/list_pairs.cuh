// Lists the pairs of a call by expert, with one CTA, in rounds of 1,024 pairs. A thread of each
// expert turns the counts of a round into positions, in order of warp. A call of several rounds
// counts all of them first.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/sm90/experts/count_pairs.cuh"

namespace dsv4::gemm::experts {

inline constexpr int kStagedEntries = 192;  // kept in shared memory, too, for the starts

template <int kExperts>
struct ListShared : RoundCounts<kExperts> {
  int first[kExperts];  // pair of each expert in this round
  int first_pair[kExperts], first_entry[kExperts];
  int entries;
  Entry staged[kStagedEntries];
  int warp_pairs[kSelectWarps], warp_entries[kSelectWarps];
};

// Lists the entries. mine: pairs of this thread's expert. Returns the first of them.
template <int kExperts>
__device__ int list_entries(const Choices& in, int mine, ListShared<kExperts>& shared,
                            const PairLists& out) {
  const int e = static_cast<int>(threadIdx.x), most = 1 << in.entry_bits;
  const int entries = mine > 0 && in.is_listed(e) ? (mine + most - 1) >> in.entry_bits : 0;
  const int pairs_through = warp_sum_through(mine), entries_through = warp_sum_through(entries);
  if (e % kWarp == kWarp - 1) {
    shared.warp_pairs[e / kWarp] = pairs_through;
    shared.warp_entries[e / kWarp] = entries_through;
  }
  __syncthreads();
  const int first = sum_warps(shared.warp_pairs).before + pairs_through - mine;
  const WarpSums entry_sums = sum_warps(shared.warp_entries);
  const int first_entry = entry_sums.before + entries_through - entries;
  for (int i = 0; i < entries; ++i) {
    const auto fill = [&](Entry& entry) {
      entry.expert = e - in.own_begin, entry.first_pair = first + i * most;
      entry.pairs = min(most, mine - i * most);
    };
    fill(out.entries[first_entry + i]);
    if (first_entry + i < kStagedEntries) fill(shared.staged[first_entry + i]);
  }
  if (e < kExperts) shared.first_pair[e] = first, shared.first_entry[e] = first_entry;
  if (e == 0) shared.entries = entry_sums.all;
  return first;
}

// Call when the entries are complete. The first W mod n of n CTAs take one stage more than the
// others of all W stages.
template <int kExperts>
__device__ void list_starts(const PairLists& out, const ListShared<kExperts>& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kProducts * out.ctas; i += kListThreads) {
    const int product = i / out.ctas, cta = i % out.ctas, stages = out.entry_stages[product];
    const int all = shared.entries * stages, each = all / out.ctas, more = all % out.ctas;
    const int first = cta * each + min(cta, more), count = each + (cta < more ? 1 : 0);
    const int index = first / stages;
    // Put together in registers, so that it is stored 16 bytes at a time.
    Start start{.index = index, .stage = first - index * stages, .stages = count};
    if (count > 0) start.entry = index < kStagedEntries ? shared.staged[index] : out.entries[index];
    out.starts[product][cta] = start;
  }
}

// What a CTA does.
template <int kExperts>
__device__ void list_pairs(const Choices& in, const PairLists& out, ListShared<kExperts>& shared) {
  const int e = static_cast<int>(threadIdx.x);
  int mine = 0;
  for (int first = 0; first < in.pairs; first += kListThreads) {
    count_round(in, first, shared);
    mine += sum_counts<false>(in, first, shared);
  }
  int at = list_entries(in, mine, shared, out);
  for (int first = 0; first < in.pairs; first += kListThreads) {
    const OwnPair own = count_round(in, first, shared);
    const int in_round = sum_counts<true>(in, first, shared);
    if (e < kExperts) shared.first[e] = at;
    at += in_round;
    __syncthreads();
    if (own.expert < 0) continue;
    const int to =
        shared.first[own.expert] + shared.counts[threadIdx.x / kWarp][own.expert] + own.before();
    out.weight[to] = in.weight(own.index);
    out.pair_of[own.index] = to;
    if (!in.is_listed(own.expert)) continue;
    const int of_expert = to - shared.first_pair[own.expert];
    const int entry = shared.first_entry[own.expert] + (of_expert >> in.entry_bits);
    const int row = in.row(own.index), in_entry = of_expert & ((1 << in.entry_bits) - 1);
    out.entries[entry].token[in_entry] = row;
    if (entry < kStagedEntries) shared.staged[entry].token[in_entry] = row;
  }
  __syncthreads();
  list_starts(out, shared);
}

// kExperts: the most that a call may have
template <int kExperts = kMaxExperts>
__global__ void __launch_bounds__(kListThreads)
    list_pairs_kernel(const __grid_constant__ Choices in, const __grid_constant__ PairLists out) {
  ptx::pdl_start();
  alignas(16) __shared__ ListShared<kExperts> shared;
  list_pairs(in, out, shared);
}

// The lists of both halves (ops/parts/experts/halves.h), by a CTA each.
template <int kExperts = kMaxExperts>
__global__ void __launch_bounds__(kListThreads)
    list_halves_kernel(const __grid_constant__ Choices first_in,
                       const __grid_constant__ PairLists first_out,
                       const __grid_constant__ Choices second_in,
                       const __grid_constant__ PairLists second_out) {
  ptx::pdl_start();
  alignas(16) __shared__ ListShared<kExperts> shared;
  const bool first = blockIdx.x == 0;
  list_pairs(first ? first_in : second_in, first ? first_out : second_out, shared);
}

}  // namespace dsv4::gemm::experts
