// Products of rows of x with weights in any stored format, on CUDA: what linear and experts share.
//
//   out[p, part * n + i] = sum_c x[row(p), c] * w(p, part)[i, c]
//
// p counts pairs: rows of out. Each belongs to one matrix of a stack of equally shaped ones. Pairs
// come in tiles that share a matrix, so that one decoding of it serves the whole tile:
//
//               pairs                       tiles                   parts of out
//   linear      the tokens                  by position             the groups
//   experts     (token, slot) by expert     a list on the device    gate and up; down is alone
//
// Two implementations: the vector kernels (product_kernel.cuh; f32, batch invariant) and the tensor
// core kernels (product_mma.cuh; rounds weights to bf16).

#pragma once

#include <cstdint>

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"

namespace dsv4 {

// `count` pairs from `first` on, all of matrix `stack`.
struct ProductTile {
  int32_t stack, first, count;
};

// Equally shaped matrices at equal distances.
struct WeightStack {
  WeightFormat format = WeightFormat::kF32;
  int bits = 0;
  bool scale_is_f32 = false;
  const std::byte* data = nullptr;
  const std::byte* scale = nullptr;
  const float* codebook = nullptr;
  int64_t row_bytes = 0, stack_bytes = 0;
  int64_t scale_row_bytes = 0, scale_stack_bytes = 0;
  int64_t codebook_stack = 0;      // floats from one matrix's codebook to the next
  float scale2 = 1.f;              // of all matrices, unless
  const float* scale2s = nullptr;  // [stack], on the device
};
WeightStack single(const WeightView& weight);

struct Product {
  // x: rows of f32, bf16, or E4M3 with one E8M0 scale per 128 columns
  const std::byte* x = nullptr;
  DType x_dtype = DType::kF32;
  int64_t x_stride = 0, x_part = 0;  // elements from row to row, from part to part
  const uint8_t* x_scale = nullptr;
  int64_t x_scale_stride = 0, x_scale_part = 0;
  const int32_t* gather = nullptr;  // [pairs] rows of x; null: row p for pair p

  std::byte* out = nullptr;
  bool out_is_bf16 = false;
  int64_t out_stride = 0;

  int n = 0, k = 0;  // of one matrix
  int parts = 1;
  bool stack_is_part = false;  // part i is matrix i of weight[0]; otherwise it is of weight[i]
  WeightStack weight[2];

  int64_t num_pairs = 0;
  const ProductTile* tiles = nullptr;  // null: tile i is [i tile_pairs, (i + 1) tile_pairs)
  const int32_t* num_tiles = nullptr;  // on the device, with `tiles`
  int64_t max_tiles = 0;               // with `tiles`
  int tile_pairs = 1;                  // of a full tile
  int rows_per_token = 0;  // rows of weights that one token meets: how far k must be split
};

inline int64_t tile_slots(const Product& p) {
  return p.tiles != nullptr ? p.max_tiles : (p.num_pairs + p.tile_pairs - 1) / p.tile_pairs;
}

// Whether rows start and end where the decoders of weight_decode.cuh want them.
bool in_whole_units(const Product& product);

// The tile that wastes least with the pairs of a product spread over this many matrices.
int vector_tile(const Device& device, const Product& product, int64_t matrices);
void run_vector_product(Device& device, const Product& product);

// Tiles up to this size take x in any dtype but f32; larger ones want bf16.
inline constexpr int kFewPairs = 16;
int mma_tile(const Device& device, const Product& product, int64_t matrices);
// nullptr, or why the tensor core kernels cannot take this product. `rounded`: weights may be
// rounded to bf16; otherwise their values are bf16 numbers. x is bf16 already, or will be widened.
const char* reject_mma(const Product& product, bool rounded);
// Puts a bf16 copy of x in its place: exact for E4M3 with power-of-two scales. The copy lives in
// the workspace, as long as the caller's scope.
void widen_activations(Device& device, Product& product);
void run_mma_product(Device& device, const Product& product);

}  // namespace dsv4
