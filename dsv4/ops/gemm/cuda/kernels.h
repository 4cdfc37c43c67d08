// The kernels of a problem by the decoder of its weights (weights/decode.cuh). They take long to
// compile: instance.cu is compiled once for each decoder.

#pragma once

#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::cuda {

struct DecodeF32;
struct DecodeBF16;
struct DecodeF16;
struct DecodeFp8;
struct DecodeMxfp4;
struct DecodeNvfp4;
template <int K>
struct DecodeKbit;

// Whether the GEMV kernels keep x as f32; otherwise as bf16, which holds E4M3 with its scales too.
inline bool is_staged_as_f32(const Problem& p) {
  return p.x_dtype == DType::kF32 || p.x_dtype == DType::kF16;
}

// The six kernels of a decoder: x as float or bf16, tiles of 1 to 8 rows.
template <class Decode>
void gemv(Device& device, const Problem& problem);
// Any format, shape and alignment; slow.
void gemv_any(Device& device, const Problem& problem);

// Tensor cores; no kernels for what reject_mma() refuses. Operands are f16 where x is, else bf16.
// Tiles of 8 or 16 rows take x in bf16, f16 or E4M3, larger ones in bf16 or f16.
template <class Decode>
void small_m(Device& device, const Problem& problem);
template <class Decode>
void mma(Device& device, const Problem& problem);

template <class Decode>
struct Decoder {};

// Calls run(Decoder<Decode>) with the decoder of the weight.
template <class Run>
void with_decoder(const StridedWeight& w, const Run& run) {
  switch (w.format) {
    case WeightFormat::kF32:
      return run(Decoder<DecodeF32>());
    case WeightFormat::kBF16:
      return run(Decoder<DecodeBF16>());
    case WeightFormat::kF16:
      return run(Decoder<DecodeF16>());
    case WeightFormat::kFp8Block:
      return run(Decoder<DecodeFp8>());
    case WeightFormat::kMxfp4:
      return run(Decoder<DecodeMxfp4>());
    case WeightFormat::kNvfp4:
      return run(Decoder<DecodeNvfp4>());
    case WeightFormat::kKbit:
      break;
  }
  switch (w.bits) {
    case 2:
      return run(Decoder<DecodeKbit<2>>());
    case 3:
      return run(Decoder<DecodeKbit<3>>());
    case 4:
      return run(Decoder<DecodeKbit<4>>());
    default:
      return run(Decoder<DecodeKbit<5>>());
  }
}

// Columns of a unit and the alignment of rows in bytes, as the decoders need them.
struct Unit {
  int columns;
  int64_t align;
};

inline Unit unit_of(const StridedWeight& w) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return {8, 16};
    case WeightFormat::kFp8Block:
      return {16, 16};
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return {32, 16};
    case WeightFormat::kKbit:
      return {32, w.bits % 2 == 0 ? 4 * w.bits : 4};
  }
  return {1, 1};
}

}  // namespace dsv4::gemm::cuda
