// Parameters and shared memory of the kernel of kbit_rows.h.

#pragma once

#include <cuda.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows_plan.h"
#include "dsv4/tensor/dtype.h"

namespace dsv4::gemm::kbit_rows {

struct Params {
  CUtensorMap weight;               // [n, k / 32 * K] words, boxes of a stage
  const uint8_t* scale = nullptr;   // [n, k / 32] E4M4
  const float* codebook = nullptr;  // [2^K]
  const void* x = nullptr;          // [tokens, k] bf16 or f16, rows 16-byte aligned
  void* out = nullptr;              // [tokens, n]
  int64_t scale_stride = 0, x_stride = 0, out_stride = 0;  // elements
  DType out_dtype = DType::kBF16;
  int n = 0, k = 0, tokens = 0;
  float scale2 = 1;
  Plan plan;
  int tune = 0;
};

// What the first thread of a warpgroup keeps between its copies, in shared memory to have fewer
// registers: the group of rows and the stage of K of the next one, the stages of a round, and how
// many copies are left.
struct alignas(32) Copies {
  int rows, stage, first, end, left;
};

// The dynamic shared memory of a CTA.
struct Memory {
  unsigned char* base;
  Layout at;
  int stages;

  __device__ Memory(int bits, const Plan& plan)
      : base(ptx::dynamic_smem()), at(bits, plan), stages(plan.stages) {}
  __device__ unsigned char* table() const { return base; }
  // Cells of 16 bytes (x_cells.cuh).
  __device__ unsigned char* x() const { return base + at.x; }
  // [rows][stage_units][16 K bytes]
  __device__ unsigned char* stage(int group, int i) const {
    return base + at.ring + (group * stages + i) * at.stage_bytes;
  }
  // [k_groups x warps_of_rows][cells][sums_pitch]
  __device__ float* sums() const { return reinterpret_cast<float*>(base + at.sums); }
  __device__ ptx::Mbarrier& full(int group, int i) const { return barrier(group * kMaxStages + i); }
  __device__ ptx::Mbarrier& empty(int group, int i) const {
    return barrier((kWarpgroups + group) * kMaxStages + i);
  }
  __device__ Copies& copies(int group) const {
    return reinterpret_cast<Copies*>(base + at.copies)[group];
  }
  // The unit of sums (weights/kbit_lookup.cuh).
  __device__ float& unit() const { return *reinterpret_cast<float*>(&copies(kWarpgroups)); }

 private:
  __device__ ptx::Mbarrier& barrier(int i) const {
    return reinterpret_cast<ptx::Mbarrier*>(base + at.barriers)[i];
  }
};

// What a warpgroup has: rows in each round, stages of K.
struct Share {
  int group, cluster, rank;  // group: of the warpgroups
  int row_group, k_group;
  int first_stage, stages;

  __device__ Share(const Plan& p, int group_, int cta)
      : group(group_),
        cluster(cta >> p.ranks / 2),
        rank(cta & (p.ranks - 1)),
        row_group(group >> (2 - p.row_groups / 2)),
        k_group(group & (p.k_groups() - 1)) {
    const int share = rank * p.k_groups() + k_group;
    first_stage = p.first_stage(share);
    stages = p.first_stage(share + 1) - first_stage;
  }
  // The first row of a warpgroup in a round.
  __device__ int first_row(const Plan& p, int round, int of_row_group) const {
    return p.first_row(group_of_rows(p, round) + of_row_group);
  }
  __device__ int group_of_rows(const Plan& p, int round) const {
    return (round * p.clusters + cluster) * p.row_groups;
  }
};

}  // namespace dsv4::gemm::kbit_rows
