// wgmma (sm_90a): asynchronous matrix products of a warpgroup.
//
//   d [64, kN] f32 (+)= a [64, K] * b [K, kN]      K = 16: a, b f16 or bf16; K = 32: a, b e4m3
//
// d: with g = lane / 4, j = lane % 4, warp w of the group has rows 16 w + g and 16 w + g + 8:
//   d[4 n], d[4 n + 1] = D[16 w + g][8 n + 2j, 8 n + 2j + 1]     d[4 n + 2], d[4 n + 3]: row + 8
// a in registers (RS): fragments as in mma.cuh, of the warp's 16 rows (e4m3: four codes in place of
// two values); in shared memory (SS): a descriptor, k contiguous.
// b: a descriptor (smem_desc.cuh). kTransposeB = 0: b is stored [n, k], k contiguous; 1: [k, n], n
// contiguous (16-bit types only).
//
// Protocol: write registers, wgmma_fence(), any number of Wgmma::run(), wgmma_commit_group();
// registers that a product reads or writes are accessed again only after wgmma_wait_group().
// Source: PTX ISA, wgmma.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace dsv4::ptx {

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups committed groups are in flight.
template <int kGroups>
__device__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps the compiler from reading the registers of a product before this point, which follows the
// wait for it.
template <int kCount>
__device__ void wgmma_fence_operand(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Keeps the compiler from writing the registers of a fragment after this point. It would move the
// end of a computation between products, and ptxas would then wait for them (C7519, C7520).
template <int kCount>
__device__ void wgmma_fence_operand(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

template <class T, int kN, int kTransposeB = 0>
struct Wgmma;

// The accumulators of a shape: their operands, and their place in the text of the instruction.
#define DSV4_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_D8(i) DSV4_D4(i), DSV4_D4(i + 4)
#define DSV4_D16(i) DSV4_D8(i), DSV4_D8(i + 8)
#define DSV4_D32(i) DSV4_D16(i), DSV4_D16(i + 16)
#define DSV4_D24(i) DSV4_D16(i), DSV4_D8(i + 16)
#define DSV4_D36(i) DSV4_D32(i), DSV4_D4(i + 32)
#define DSV4_D40(i) DSV4_D32(i), DSV4_D8(i + 32)
#define DSV4_D48(i) DSV4_D32(i), DSV4_D16(i + 32)
#define DSV4_D52(i) DSV4_D48(i), DSV4_D4(i + 48)
#define DSV4_D56(i) DSV4_D48(i), DSV4_D8(i + 48)
#define DSV4_D64(i) DSV4_D32(i), DSV4_D32(i + 32)
#define DSV4_D128(i) DSV4_D64(i), DSV4_D64(i + 64)
#define DSV4_TEXT4 "%0, %1, %2, %3"
#define DSV4_TEXT8 DSV4_TEXT4 ", %4, %5, %6, %7"
#define DSV4_TEXT16 DSV4_TEXT8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV4_TEXT24 DSV4_TEXT16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define DSV4_TEXT32 \
  DSV4_TEXT16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV4_TEXT36 DSV4_TEXT32 ", %32, %33, %34, %35"
#define DSV4_TEXT40 DSV4_TEXT32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DSV4_TEXT48 \
  DSV4_TEXT32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DSV4_TEXT52 DSV4_TEXT48 ", %48, %49, %50, %51"
#define DSV4_TEXT56 DSV4_TEXT48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DSV4_TEXT64                                                                  \
  DSV4_TEXT32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSV4_TEXT128                                                                             \
  DSV4_TEXT64                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

// One shape m64nNkK of one type. I0 .. I6 are the numbers of the operands after the accumulators.
// TRANSPOSE_RS and TRANSPOSE_SS: the operands that only 16-bit types have.
#define DSV4_WGMMA_TYPE(T, TYPE, K, N, COUNT, TRANSPOSE_RS, TRANSPOSE_SS, I0, I1, I2, I3, I4, I5) \
  template <int kTransposeB>                                                                      \
  struct Wgmma<T, N, kTransposeB> {                                                               \
    static_assert(K == 16 || kTransposeB == 0, "e4m3 operands have k contiguous");                \
    __device__ static void run(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b,             \
                               int accumulate) {                                                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE            \
                   " {" DSV4_TEXT##COUNT "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4     \
                                         ", p, 1, 1" TRANSPOSE_RS ";\n}"                          \
                   : DSV4_D##COUNT(0)                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),         \
                     "n"(kTransposeB));                                                           \
    }                                                                                             \
    __device__ static void run(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) {       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE            \
                   " {" DSV4_TEXT##COUNT "}, %" #I0 ", %" #I1 ", p, 1, 1" TRANSPOSE_SS ";\n}"     \
                   : DSV4_D##COUNT(0)                                                             \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeB));                          \
    }                                                                                             \
  };

#define DSV4_WGMMA(N, COUNT, I0, I1, I2, I3, I4, I5, I6)                                        \
  DSV4_WGMMA_TYPE(__half, "f16", 16, N, COUNT, ", %" #I6, ", 0, %" #I3, I0, I1, I2, I3, I4, I5) \
  DSV4_WGMMA_TYPE(__nv_bfloat16, "bf16", 16, N, COUNT, ", %" #I6, ", 0, %" #I3, I0, I1, I2, I3, \
                  I4, I5)                                                                       \
  DSV4_WGMMA_TYPE(__nv_fp8_e4m3, "e4m3", 32, N, COUNT, "", "", I0, I1, I2, I3, I4, I5)

DSV4_WGMMA(8, 4, 4, 5, 6, 7, 8, 9, 10)
DSV4_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
DSV4_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
DSV4_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
DSV4_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
DSV4_WGMMA(72, 36, 36, 37, 38, 39, 40, 41, 42)
DSV4_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
DSV4_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
DSV4_WGMMA(104, 52, 52, 53, 54, 55, 56, 57, 58)
DSV4_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
DSV4_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
DSV4_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef DSV4_WGMMA
#undef DSV4_WGMMA_TYPE
#undef DSV4_D4
#undef DSV4_TEXT4
#undef DSV4_D8
#undef DSV4_TEXT8
#undef DSV4_D16
#undef DSV4_TEXT16
#undef DSV4_D32
#undef DSV4_TEXT32
#undef DSV4_D24
#undef DSV4_TEXT24
#undef DSV4_D36
#undef DSV4_TEXT36
#undef DSV4_D40
#undef DSV4_TEXT40
#undef DSV4_D48
#undef DSV4_TEXT48
#undef DSV4_D52
#undef DSV4_TEXT52
#undef DSV4_D56
#undef DSV4_TEXT56
#undef DSV4_D64
#undef DSV4_TEXT64
#undef DSV4_D128
#undef DSV4_TEXT128

}  // namespace dsv4::ptx
