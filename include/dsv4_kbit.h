// Weights of 2 to 5 bits, FP4 and FP8 times activations in f32, bf16 or f16: dense products,
// products grouped by expert, a whole mixture of experts, and the conversions of the weights.
//
//   dsv4_quantize_kbit          floats to k-bit weights
//   dsv4_dequantize_kbit        weights in any format to floats
//   dsv4_repack_kbit            k-bit and FP4 weights from one layout to another
//   dsv4_repack_scales          scales of FP4 weights as Blackwell reads them, and back
//   dsv4_kbit_linear            out = x w^T
//   dsv4_kbit_expert_linear     the same for rows sorted by expert
//   dsv4_kbit_moe               down(a(gate x) * up x) of the chosen experts, weighted and summed
//
//   dsv4_kbit_gemm_prod, dsv4_kbit_scalar_gemv, dsv4_kbit_grouped_gemm
//                               the products again, with the limits that these names have elsewhere
//
// Products accumulate in f32 and round once, at the store. On the host the bits of an output
// row depend on its own row of x and its own weights, not on the other rows or on the number of
// threads. Formats: docs/formats.md; source: docs/spec/lowbit.md 1.2, 1.3. Which calls a GPU takes:
// docs/kernels/kbit.md.
//
// What it does not do: biases, backward, weights with other block sizes than those below.

#pragma once

#include "dsv4_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// format              data                  scale                       value
// DSV4_WEIGHT_FLOAT   [n, k] F32|BF16|F16   -                           data
// DSV4_WEIGHT_FP8     [n, k] E4M3           [n/128, k/128] E8M0|F32,    data * scale
//                                           rounded up
// DSV4_WEIGHT_MXFP4   [n, k/2] U8           [n, k/32] E8M0              e2m1 * scale
// DSV4_WEIGHT_NVFP4   [n, k/2] U8           [n, k/16] E4M3              e2m1 * scale * scale2
// DSV4_WEIGHT_KBIT    [n, k/32 * bits] I32  [n, k/32] U8 (E4M4)         codebook[code] * scale
//                                                                       * scale2
//
// U8 and I8 stand for E4M3 and E8M0 too. The low nibble of an FP4 byte is the even k.
typedef enum dsv4_weight_format {
  DSV4_WEIGHT_FLOAT = 0,
  DSV4_WEIGHT_FP8 = 1,
  DSV4_WEIGHT_MXFP4 = 2,
  DSV4_WEIGHT_NVFP4 = 3,
  DSV4_WEIGHT_KBIT = 4
} dsv4_weight_format;

// DSV4_ROWS   as above. The layout of files, and the one that is read without a conversion.
// DSV4_TILED  k-bit only, n a multiple of 128: data [ceil(k/64), n, 2 bits] I32,
//             scale [ceil(k/64), n, 2] U8
// DSV4_IMAGE  k-bit and FP4: data [dsv4_kbit_image_bytes()] U8, scales included; no scale
//
// dsv4_kbit_linear of up to 16 rows and dsv4_kbit_moe read images as they are where x is BF16 on a
// Hopper GPU, of at most 8,192 columns, with at most 4 bits and e4m3_codebook, or FP4; those of up
// to 512 experts at equal distances. Other products convert the last two to rows in every call; on
// a GPU the rows lie in the workspace.
typedef enum dsv4_weight_layout {
  DSV4_ROWS = 0,
  DSV4_TILED = 1,
  DSV4_IMAGE = 2
} dsv4_weight_layout;

typedef struct dsv4_weight {
  int32_t format;         // dsv4_weight_format
  int32_t layout;         // dsv4_weight_layout
  int32_t bits;           // k-bit: 2 to 5
  int32_t e4m3_codebook;  // 1: the codebook is that of the name "e4m3", for which a GPU has kernels
                          // that do not read it
  int64_t n, k;           // y[n] = sum_k w[n, k] x[k]
  dsv4_tensor data, scale;
  dsv4_tensor codebook;  // k-bit: [2^bits] F32, ascending
  float scale2;          // 0: 1
} dsv4_weight;

// The codebook of a name, for `bits` of 2 to 5: "nf" (normal float), "bnf" (the least squared error
// for Gaussian weights), "e4m3" (FP8 numbers), and of 4 bits "e2m1". codebook: [2^bits]
DSV4_API int dsv4_kbit_codebook(const char* name, int32_t bits, float* codebook);
DSV4_API int dsv4_create_normal_float_codebook(int32_t bits, float* codebook);  // "nf"
// Bytes of the image of a weight whose data and scale are not read; the codebook is.
DSV4_API int dsv4_kbit_image_bytes(const dsv4_weight* weight, int64_t* bytes);
// 1, or the power of two by which quantize_kbit has to divide x so that scales fit E4M4. On a GPU
// it waits for the whole device.
DSV4_API int dsv4_kbit_tensor_scale(const dsv4_tensor* x, float* scale);

// On a GPU the call waits for its stream, which cannot be captured: it reads the codebook before
// the kernel and reports a refused value after it.
//
// A block is 32 columns; the last one of a row is filled up with zeros. Values beyond +-31 times
// the tensor scale are refused: on the host the error line has the scale to use, on a GPU
// dsv4_kbit_tensor_scale() computes it.
typedef struct dsv4_quantize_kbit_params {
  size_t size;           // sizeof(dsv4_quantize_kbit_params)
  dsv4_tensor x;         // [n, k] F32|BF16|F16, finite
  dsv4_tensor codebook;  // [2^bits] F32, ascending
  int32_t bits;
  int32_t search;          // 0: the scale of a block is its largest magnitude, to the bit of the
                           // reference; 1: the scale of least squared error
  dsv4_tensor importance;  // [k] F32 >= 0: weights of the squared error; needs search; or absent
  float tensor_scale;      // the weight's scale2, a power of two; 0: 1
  dsv4_tensor data;        // [n, ceil(k/32) * bits] I32
  dsv4_tensor scale;       // [n, ceil(k/32)] U8
} dsv4_quantize_kbit_params;

DSV4_API int dsv4_quantize_kbit(const dsv4_quantize_kbit_params* params, const dsv4_call* call);
DSV4_API int dsv4_quantize_kbit_workspace_bytes(const dsv4_quantize_kbit_params* params,
                                                const dsv4_call* call, size_t* bytes);

typedef struct dsv4_dequantize_kbit_params {
  size_t size;  // sizeof(dsv4_dequantize_kbit_params)
  dsv4_weight weight;
  dsv4_tensor out;  // [n, k] F32|BF16|F16
} dsv4_dequantize_kbit_params;

DSV4_API int dsv4_dequantize_kbit(const dsv4_dequantize_kbit_params* params, const dsv4_call* call);
DSV4_API int dsv4_dequantize_kbit_workspace_bytes(const dsv4_dequantize_kbit_params* params,
                                                  const dsv4_call* call, size_t* bytes);

// `to` names the wanted layout, and its data and scale are written; of the rest only `layout` is
// read. Codes and scales are moved, never changed.
typedef struct dsv4_repack_kbit_params {
  size_t size;  // sizeof(dsv4_repack_kbit_params)
  dsv4_weight from, to;
} dsv4_repack_kbit_params;

DSV4_API int dsv4_repack_kbit(const dsv4_repack_kbit_params* params, const dsv4_call* call);
DSV4_API int dsv4_repack_kbit_workspace_bytes(const dsv4_repack_kbit_params* params,
                                              const dsv4_call* call, size_t* bytes);

// Tiles of 128 rows by 4 groups of columns, each a byte; what is beyond the weight is zero. Byte
// (row % 32) * 16 + (row / 32 % 4) * 4 + group % 4 of tile [row / 128, group / 4]: cuBLASLt's order
// of VEC16_UE4M3 (NVFP4) and VEC32_UE8M0 (MXFP4). Codes stay as they are. No product here reads it.
typedef struct dsv4_repack_scales_params {
  size_t size;        // sizeof(dsv4_repack_scales_params)
  int32_t to_rows;    // 0: rows to tiles; 1: tiles to rows
  dsv4_tensor rows;   // [n, groups] U8|E4M3|E8M0
  dsv4_tensor tiles;  // [ceil(n/128), ceil(groups/4), 512] U8|E4M3|E8M0, packed
} dsv4_repack_scales_params;

DSV4_API int dsv4_repack_scales(const dsv4_repack_scales_params* params, const dsv4_call* call);
DSV4_API int dsv4_repack_scales_workspace_bytes(const dsv4_repack_scales_params* params,
                                                const dsv4_call* call, size_t* bytes);

typedef struct dsv4_kbit_linear_params {
  size_t size;    // sizeof(dsv4_kbit_linear_params)
  dsv4_tensor x;  // [m, k] F32|BF16|F16
  dsv4_weight weight;
  dsv4_tensor out;  // [m, n] F32|BF16|F16
} dsv4_kbit_linear_params;

DSV4_API int dsv4_kbit_linear(const dsv4_kbit_linear_params* params, const dsv4_call* call);
DSV4_API int dsv4_kbit_linear_workspace_bytes(const dsv4_kbit_linear_params* params,
                                              const dsv4_call* call, size_t* bytes);
// A tiled k-bit weight.
DSV4_API int dsv4_kbit_gemm_prod(const dsv4_kbit_linear_params* params, const dsv4_call* call);
// A k-bit weight in rows, and up to 4 rows of x.
DSV4_API int dsv4_kbit_scalar_gemv(const dsv4_kbit_linear_params* params, const dsv4_call* call);

// out[r] = w_e x[r] for offsets[e] <= r < offsets[e + 1]. Experts may differ in format and bits.
typedef struct dsv4_kbit_expert_linear_params {
  size_t size;                 // sizeof(dsv4_kbit_expert_linear_params)
  dsv4_tensor x;               // [rows, k] F32|BF16|F16, sorted by expert
  const dsv4_weight* weights;  // [num_experts], each [n, k]
  int64_t num_experts;
  // [num_experts + 1] I32, ascending from 0 to rows; not checked on a GPU, where others are
  // undefined behavior
  dsv4_tensor offsets;
  dsv4_tensor out;  // [rows, n] F32|BF16|F16
} dsv4_kbit_expert_linear_params;

DSV4_API int dsv4_kbit_expert_linear(const dsv4_kbit_expert_linear_params* params,
                                     const dsv4_call* call);
DSV4_API int dsv4_kbit_expert_linear_workspace_bytes(const dsv4_kbit_expert_linear_params* params,
                                                     const dsv4_call* call, size_t* bytes);
// Tiled k-bit weights.
DSV4_API int dsv4_kbit_grouped_gemm(const dsv4_kbit_expert_linear_params* params,
                                    const dsv4_call* call);

typedef enum dsv4_activation {
  DSV4_SILU = 0,
  DSV4_GELU = 1,      // with the error function
  DSV4_GELU_TANH = 2  // with its approximation by tanh
} dsv4_activation;

// g = gate_e x, u = up_e x,  h = a(min(g, limit)) * clamp(u, -limit, limit)
// out[t] = sum_j expert_weights[t, j] down_e h,  e = experts[t, j], in ascending order of e
//
// g, u, h and the sum are f32. On a GPU the implementations "cuda_kbit" and "cuda_mma" round
// weights and h to the type of x, bf16 or f16, and "sm90_image" h to bf16; with dsv4_call::exact
// nothing is rounded.
typedef struct dsv4_kbit_moe_params {
  size_t size;                          // sizeof(dsv4_kbit_moe_params)
  dsv4_tensor x;                        // [t, d] F32|BF16|F16
  const dsv4_weight *gate, *up, *down;  // [num_experts] of [i, d], [i, d] and [d, i]
  int64_t num_experts;
  // [t, top_k] I32 in [0, num_experts); not checked on a GPU, where others are undefined behavior
  dsv4_tensor experts;
  dsv4_tensor expert_weights;  // [t, top_k] F32
  int32_t activation;          // dsv4_activation
  float limit;                 // 0: none
  dsv4_tensor out;             // [t, d] F32|BF16|F16
} dsv4_kbit_moe_params;

DSV4_API int dsv4_kbit_moe(const dsv4_kbit_moe_params* params, const dsv4_call* call);
DSV4_API int dsv4_kbit_moe_workspace_bytes(const dsv4_kbit_moe_params* params,
                                           const dsv4_call* call, size_t* bytes);

#ifdef __cplusplus
}
#endif
