// What emulated kernels call: through builtins.h for CUDA's functions, and through
// include/dsv4/device/ptx for ours. Addresses are shared addresses of the running thread's CTA.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace dsv4::emulator {

void pause();  // other threads may run now
[[noreturn]] void trap();

// Warps, all lanes.
uint32_t shuffle(const char* op, uint32_t mask, uint32_t value, int from);
uint32_t ballot(const char* op, uint32_t mask, bool yes);
void sync_warp();

// CTAs and clusters. barrier: whether `yes` is true in any of its threads.
bool barrier(int id, int threads, bool yes);
void barrier_arrive(int id, int threads);  // does not wait
bool barrier_of_all(bool yes);
void cluster_arrive();
void cluster_wait();
int cluster_rank();
int cluster_id();
constexpr uint32_t kSharedWindow = 1 << 24;  // of a CTA; the windows of a cluster are contiguous
uint32_t shared_address(const void* pointer);
uint32_t shared_address_in_cluster(const void* pointer, uint32_t rank);  // of CTA `rank`
unsigned char* block_memory();

// griddepcontrol
void launch_dependents();
void wait_for_prerequisites();

// Counters in global memory, between CTAs that run at the same time.
void counter_add(int32_t* counter, int32_t value);
void counter_wait(const int32_t* counter, int32_t least);
void flag_raise(int64_t* flag, int64_t value);
void flag_wait(const int64_t* flag, int64_t least);

// mbarriers; `barrier` is where the kernel has its 8 bytes.
void mbarrier_init(void* barrier, uint32_t arrivals);
void mbarrier_arrive(void* barrier);
void mbarrier_expect(void* barrier, uint32_t bytes);
// To that place of another CTA, whose barrier counts the bytes.
void store_at(void* place, uint32_t rank, const void* value, size_t bytes, void* barrier);
// What that place of another CTA holds.
void load_from(const void* place, uint32_t rank, void* to, size_t bytes);
void mbarrier_arrive_after_copies(void* barrier);
void mbarrier_arrive_at(void* barrier, uint32_t rank);
void mbarrier_wait(void* barrier, uint32_t parity);

void copy(uint32_t to, const void* from, int bytes, bool valid);
void store_zeros(uint32_t to);
void load(const void* from, void* to, size_t bytes);  // from global memory, aligned to its size
void copy_bulk(uint32_t to, const void* from, uint32_t bytes, void* barrier);
void commit_copies();
void wait_for_copies(int groups);  // but the last `groups`
void wait_for_copies();
// A box of a tensor, from its first element on; map: a CUtensorMap of emulator::make_tma_map().
// copy_tensor_to: to the same place of every CTA of the cluster whose bit is set.
void copy_tensor(uint32_t to, const void* map, std::initializer_list<int32_t> first, void* barrier);
void copy_tensor_to(uint16_t ctas, uint32_t to, const void* map,
                    std::initializer_list<int32_t> first, void* barrier);
void store_tensor(const void* map, std::initializer_list<int32_t> first, uint32_t from);
void bulk_commit();
void bulk_wait(int groups);
void bulk_wait_read(int groups);
void fence_proxy_async();

// 8 x 8 matrices of 16-bit values; `row`: this lane's address. load: four, to r[0 .. 3]; store:
// from r[0 .. matrices).
void load_matrices(uint32_t* r, uint32_t row, bool transposed);
void store_matrices(const uint32_t* r, uint32_t row, int matrices, bool transposed);

enum class OperandType : uint8_t { kF16, kBf16, kE4M3 };
// mma.sync m16n8k16 of bf16 or f16.
void multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, OperandType type);

// wgmma; a: registers, or null and a descriptor.
struct WgmmaShape {
  OperandType type;
  int n;
  bool transposed;
};
void wgmma(const WgmmaShape& shape, float* d, const uint32_t* a, uint64_t a_tile, uint64_t b_tile,
           bool accumulate);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int groups);

}  // namespace dsv4::emulator
