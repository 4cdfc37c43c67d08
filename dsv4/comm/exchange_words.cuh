// An exchange of few bytes: every eight of them travel with the number of the exchange, in one
// store (NumberedWord). A rank that reads a word and finds the number in it has the bytes, so an
// exchange takes one way of the link: no fence that waits until stores have arrived, and no flag
// after it. Twice the bytes travel, so exchanges of many bytes go the other way (exchange.cuh).
//
//   words of a rank    two buffers of kWords, used in turn; other ranks write, it reads
//   word i             bytes [8 i, 8 i + 8) of the tensors, as exchange.cuh lays them in a window
//
// Two buffers are enough for the reason that exchange.cuh gives: a kernel has ended only when it
// has read words of every other rank, so every other rank has begun this exchange and has ended the
// one before. So every rank must give a word to every other one. Numbers only grow, and exchanges
// of both kinds count together.

#pragma once

#include "dsv4/comm/exchange.cuh"

namespace dsv4::exchange {

inline constexpr int64_t kWordBytes = 8;
inline constexpr int64_t kMaxBytesByWords = int64_t{1} << 20;     // of the tensors
inline constexpr int64_t kWords = kMaxBytesByWords / kWordBytes;  // of a buffer

template <class Unit>
inline constexpr int32_t kUnits = kWordBytes / sizeof(Unit);  // of a word

template <class Unit>
__device__ uint64_t word_at(const Unit* from) {
  uint64_t word = 0;
  Unit units[kUnits<Unit>];
  for (int i = 0; i < kUnits<Unit>; ++i) units[i] = from[i];
  __builtin_memcpy(&word, units, sizeof word);
  return word;
}

template <class Unit>
__device__ void put_word(Unit* to, uint64_t word) {
  Unit units[kUnits<Unit>];
  __builtin_memcpy(units, &word, sizeof word);
  for (int i = 0; i < kUnits<Unit>; ++i) to[i] = units[i];
}

// body(row, word of the row) for the words that CTA `cta` moves of `columns` units of `rows`.
template <class Unit, class Body>
__device__ void for_words(int32_t rows, int32_t columns, int cta, int ctas, const Body& body) {
  const auto width = static_cast<uint32_t>(columns / kUnits<Unit>);
  const int64_t words = static_cast<int64_t>(rows) * width;
  const auto end = static_cast<uint32_t>(words * (cta + 1) / ctas);
  for (uint32_t i = static_cast<uint32_t>(words * cta / ctas) + threadIdx.x; i < end;
       i += blockDim.x)
    body(i / width, i % width);
}

// Where the first word of a row of the tensor is in a buffer.
template <class Unit>
__device__ int64_t first_word(const ExchangedTensor& t, uint32_t row) {
  return t.window / kWordBytes + static_cast<int64_t>(row) * (t.columns / kUnits<Unit>);
}

template <class Unit>
__device__ void store_words(const ExchangeParams& p, const ExchangedTensor& t, int64_t number,
                            int cta, int ctas) {
  const int64_t buffer = number % 2 * kWords + t.begin[p.rank] / kUnits<Unit>;
  for_words<Unit>(t.rows, t.count[p.rank], cta, ctas, [&](uint32_t row, uint32_t word) {
    if (t.ids != nullptr && t.owner(row, p.world) != p.rank) return;
    const Unit* const from = static_cast<const Unit*>(t.from) + row * t.from_stride;
    const uint64_t value = word_at(from + word * kUnits<Unit>);
    for (int r = 0; r < p.world; ++r)
      if (r != p.rank)
        ptx::store_numbered(p.words[r] + buffer + first_word<Unit>(t, row) + word, value, number);
  });
}

// Whether the words of rank `from` came that this CTA takes, as far as this thread knows.
template <class Unit>
__device__ bool take_words(const ExchangeParams& p, const ExchangedTensor& t, int from,
                           int64_t number, int cta, int ctas) {
  const ptx::NumberedWord* const words =
      p.words[p.rank] + number % 2 * kWords + t.begin[from] / kUnits<Unit>;
  bool came = true;
  for_words<Unit>(t.rows, t.count[from], cta, ctas, [&](uint32_t row, uint32_t word) {
    if (!came || (t.ids != nullptr && t.owner(row, p.world) != from)) return;
    uint64_t value = 0;
    came = ptx::wait_for_numbered(words + first_word<Unit>(t, row) + word, number, value, p.stop,
                                  p.limit_ns);
    Unit* const to = static_cast<Unit*>(t.to) + row * t.to_stride + t.begin[from];
    if (came) put_word(to + word * kUnits<Unit>, value);
  });
  return came;
}

// What CTA `cta` of `ctas` does. Whole words of every rank: what each has of a row, and begins at,
// is a multiple of kUnits.
template <class Unit>
__device__ void exchange_words(const ExchangeParams& p, int cta, int ctas) {
  const int64_t number = p.done[cta] + 1;
  const int64_t begin = ptx::global_nanoseconds();
  for (int i = 0; i < p.num_tensors; ++i) store_words<Unit>(p, p.tensors[i], number, cta, ctas);
  bool came = true;
  for (int i = 0; i < p.num_tensors; ++i) {
    for (int r = 0; r < p.world && came; ++r) {
      if (r == p.rank) continue;
      came = take_words<Unit>(p, p.tensors[i], r, number, cta, ctas);
      if (!came) leave(p, r);
    }
  }
  __syncthreads();  // all threads have read p.done, and have their words
  if (threadIdx.x != 0) return;
  p.done[cta] = number;
  if (cta == ctas - 1) *p.waited += ptx::global_nanoseconds() - begin;
}

}  // namespace dsv4::exchange
