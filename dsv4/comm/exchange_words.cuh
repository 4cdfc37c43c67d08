// An exchange of few bytes: every eight of them travel with the number of the exchange, in one
// store (NumberedWord). A rank that reads a word and finds the number in it has the bytes, so an
// exchange takes one way of the link: no fence that waits until stores have arrived, and no flag
// after it. Twice the bytes travel, so exchanges of many bytes go the other way (exchange.cuh).
//
//   words of a rank    two buffers (PeerWords), used in turn; other ranks write, it reads
//   word i             bytes [8 i, 8 i + 8) of the tensors, as exchange.cuh lays them in a window
//
// Two buffers are enough for the reason that exchange.cuh gives: a kernel has ended only when it
// has read words of every other rank, so every other rank has begun this exchange and has ended the
// one before. So every rank must give a word to every other one. Numbers only grow, and exchanges
// of both kinds count together. A word says itself whether it came, so CTAs of a rank need no
// partner on the other ranks, and an exchange has as many of them as it has words for.
//
// With programmatic dependent launch (griddep.cuh) the CTAs are there when the kernel before ends,
// and the next kernel may read its weights while this one waits for the others. Everything here
// comes after the wait, so the kernels before, and with them the exchange before, are complete when
// a rank stores; nothing of the above changes. Ranks that share a GPU do without: CTAs of a next
// kernel that wait would take the room in which another rank computes what they wait for.
//
// A kernel that computes with the values may make the exchange itself (device/peer_words.cuh), by
// the same rules and numbers: the boundary between two blocks does so with y.

#pragma once

#include "dsv4/comm/exchange.cuh"
#include "dsv4/device/ptx/griddep.cuh"

namespace dsv4::exchange {

inline constexpr int64_t kWordBytes = PeerWords::kBytes;
inline constexpr int64_t kMaxBytesByWords = PeerWords::kMostBytes;  // of the tensors

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

// A word of a rank.
struct WordPlace {
  const ExchangedTensor& tensor;
  int rank;
  uint32_t row, word;  // of the row

  __device__ bool is_of_rank(int world) const {
    return tensor.ids == nullptr || tensor.owner(row, world) == rank;
  }
  // Where the word is in a buffer.
  template <class Unit>
  __device__ int64_t in_buffer() const {
    const int64_t units = int64_t{row} * tensor.columns + tensor.begin[rank];
    return tensor.window / kWordBytes + units / kUnits<Unit> + word;
  }
};

// body(a WordPlace) for the words of the ranks in `ranks`, bits, that CTA `cta` moves.
template <class Unit, class Body>
__device__ void for_words(const ExchangeParams& p, uint32_t ranks, int cta, int ctas,
                          const Body& body) {
  const uint32_t step = static_cast<uint32_t>(ctas) * blockDim.x;
  uint32_t i = static_cast<uint32_t>(cta) * blockDim.x + threadIdx.x;
  for (int at = 0; at < p.num_tensors; ++at) {
    const ExchangedTensor& t = p.tensors[at];
    for (int r = 0; r < p.world; ++r) {
      if ((ranks >> r & 1) == 0) continue;
      const auto width = static_cast<uint32_t>(t.count[r] / kUnits<Unit>);
      const uint32_t words = width * static_cast<uint32_t>(t.rows);
      for (; i < words; i += step) body(WordPlace{t, r, i / width, i % width});
      i -= words;  // the next words follow these
    }
  }
}

template <class Unit>
__device__ void store_words(const ExchangeParams& p, int64_t number, int cta, int ctas) {
  for_words<Unit>(p, 1u << p.rank, cta, ctas, [&](const WordPlace& at) {
    if (!at.is_of_rank(p.world)) return;
    const ExchangedTensor& t = at.tensor;
    const Unit* const from = static_cast<const Unit*>(t.from) + at.row * t.from_stride;
    const uint64_t value = word_at(from + at.word * kUnits<Unit>);
    for (int r = 0; r < p.world; ++r)
      if (r != p.rank)
        ptx::store_numbered(buffer_of(p.words[r], number) + at.in_buffer<Unit>(), value, number);
  });
}

// A thread whose rank did not come ends all waiting and takes no more.
template <class Unit>
__device__ void take_words(const ExchangeParams& p, int64_t number, int cta, int ctas) {
  bool came = true;
  const uint32_t others = ((1u << p.world) - 1) & ~(1u << p.rank);
  for_words<Unit>(p, others, cta, ctas, [&](const WordPlace& at) {
    if (!came || !at.is_of_rank(p.world)) return;
    uint64_t value = 0;
    came = ptx::wait_for_numbered(buffer_of(p.words[p.rank], number) + at.in_buffer<Unit>(), number,
                                  value, p.wait.stop, p.wait.limit_ns);
    if (!came) return leave(p.wait, at.rank);
    const ExchangedTensor& t = at.tensor;
    Unit* const to = static_cast<Unit*>(t.to) + at.row * t.to_stride + t.begin[at.rank];
    put_word(to + at.word * kUnits<Unit>, value);
  });
}

// What CTA `cta` of `ctas` does. Whole words of every rank: what each has of a row, and begins at,
// is a multiple of kUnits. lets_next_start: the next kernel of the stream, before its own wait
template <class Unit>
__device__ void exchange_words(const ExchangeParams& p, bool lets_next_start, int cta, int ctas) {
  if (lets_next_start) ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t number = p.wait.done[cta] + 1;
  const int64_t begin = ptx::global_nanoseconds();
  store_words<Unit>(p, number, cta, ctas);
  take_words<Unit>(p, number, cta, ctas);
  count(p, number, begin, cta, ctas);
}

// The grid of an exchange in which a rank takes up to `words` words: a thread for each, in small
// blocks first, which find room beside a kernel that still runs.
struct WordsGrid {
  int ctas, threads;
};
inline WordsGrid words_grid(int64_t words, int most_ctas) {
  int threads = 64;
  while (threads < kThreads && words > int64_t{most_ctas} * threads) threads *= 2;
  const int64_t ctas = (words + threads - 1) / threads;
  return {static_cast<int>(ctas < most_ctas ? ctas : most_ctas), threads};
}

}  // namespace dsv4::exchange
