// Small f32 matrix products for CPU implementations, single-threaded: the caller splits the work.
//
// The bits of an element depend on the length of its sum and on the instruction set, never on the
// rows that are multiplied in the same call, so a caller may tile tokens, heads or keys in any way.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;  // stride: elements from one row to the next

  T* row(int64_t i) const { return data + i * stride; }
};

// out[i][j] = sum_c a[i][c] b[j][c]                a: [m, k], b: [n, k], out: [m, n]
void matmul_abt(const Matrix<const float>& a, const Matrix<const float>& b,
                const Matrix<float>& out);
// out[i][c] = sum_j a[i][j] b[j][c], j ascending   a: [m, n], b: [n, k], out: [m, k]
void matmul_ab(const Matrix<const float>& a, const Matrix<const float>& b,
               const Matrix<float>& out);

}  // namespace dsv4::cpu
