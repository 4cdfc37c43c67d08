// An entry pools tokens from the state (those of earlier calls, ape added) and from this call's
// input (ape not yet added). Both sources give the same float, so results do not depend on where a
// chunk ends.
//
// Entries are computed in parallel, each row by row so that memory is read sequentially; the states
// are updated after all entries have read them.

#include "dsv4/ops/parts/compressor/compressor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/parts/compressor/compressor_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/base/error.h"
#include "dsv4/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::compressor_kernel::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> Logit(D d, const float* gate, const float* ape) {
  return hn::Add(hn::LoadU(d, gate), hn::LoadU(d, ape));
}

template <class D>
HWY_INLINE void RaiseAt(D d, const float* gate, const float* ape, float* largest) {
  hn::StoreU(hn::Max(Logit(d, gate, ape), hn::LoadU(d, largest)), d, largest);
}

template <class D>
HWY_INLINE void AddWeightedAt(D d, const float* kv, const float* gate, const float* ape,
                              const float* largest, float* sum, float* pooled) {
  const auto shifted = hn::Sub(Logit(d, gate, ape), hn::LoadU(d, largest));
  const auto weight = dsv4::cpu::HWY_NAMESPACE::ExpNonPositive(d, shifted);
  hn::StoreU(hn::Add(hn::LoadU(d, sum), weight), d, sum);
  hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, kv), hn::LoadU(d, pooled)), d, pooled);
}

// largest = max(largest, gate + ape)
void RaiseMax(const float* gate, const float* ape, float* largest, int64_t n) {
  const hn::ScalableTag<float> f32;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  int64_t c = 0;
  for (; c + step <= n; c += step) RaiseAt(f32, gate + c, ape + c, largest + c);
  for (; c < n; ++c) RaiseAt(hn::CappedTag<float, 1>(), gate + c, ape + c, largest + c);
}

// w = exp(gate + ape - largest); sum += w; pooled += w kv
void AddWeighted(const float* kv, const float* gate, const float* ape, const float* largest,
                 float* sum, float* pooled, int64_t n) {
  const hn::ScalableTag<float> f32;
  const hn::CappedTag<float, 1> one;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  int64_t c = 0;
  for (; c + step <= n; c += step) {
    AddWeightedAt(f32, kv + c, gate + c, ape + c, largest + c, sum + c, pooled + c);
  }
  for (; c < n; ++c)
    AddWeightedAt(one, kv + c, gate + c, ape + c, largest + c, sum + c, pooled + c);
}

}  // namespace dsv4::compressor_kernel::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"

namespace dsv4::compressor_kernel::cpu {

HWY_EXPORT(RaiseMax);
HWY_EXPORT(AddWeighted);

namespace {

struct Sequence {
  int64_t first_token, start, end;  // positions [start, end) are input rows first_token ...
  float* state;
};

// `columns` values of one token, from the input or from the state.
struct TokenRow {
  const float* kv;
  const float* gate;
  const float* ape;  // zeros where the gate includes it already
};

struct Entry {
  const Sequence* sequence;
  int64_t block;
};

std::vector<Sequence> read_sequences(const CompressorArgs& args) {
  const int64_t tokens = args.kv.dim(0), slots = args.state.dim(0);
  std::vector<Sequence> sequences;
  std::vector<bool> taken(static_cast<size_t>(slots));
  for (int64_t i = 0; i < args.start.numel(); ++i) {
    const int32_t* cu = args.cu_tokens.as<int32_t>() + i;
    const int64_t start = args.start.as<int32_t>()[i], slot = args.state_slots.as<int32_t>()[i];
    DSV4_CHECK(0 <= cu[0] && cu[0] <= cu[1] && cu[1] <= tokens, "cu_tokens[{}]={} .. {} of {}", i,
               cu[0], cu[1], tokens);
    DSV4_CHECK(start >= 0, "start[{}]={}", i, start);
    if (slot < 0 && cu[0] == cu[1]) continue;
    DSV4_CHECK(0 <= slot && slot < slots, "state_slots[{}]={} of {}", i, slot, slots);
    DSV4_CHECK(!taken[static_cast<size_t>(slot)], "state_slots[{}]={} is taken twice", i, slot);
    taken[static_cast<size_t>(slot)] = true;
    sequences.push_back({cu[0], start, start + cu[1] - cu[0], args.state.row<float>(slot)});
  }
  return sequences;
}

class Pooling {
 public:
  explicit Pooling(const CompressorArgs& args)
      : args_(args), layout_(args.layout), sequences_(read_sequences(args)) {
    no_ape_.assign(static_cast<size_t>(layout_.columns()), 0.f);
    for (const Sequence& sequence : sequences_) {
      const int64_t first = sequence.start / layout_.ratio, last = sequence.end / layout_.ratio;
      for (int64_t block = first; block < last; ++block) entries_.push_back({&sequence, block});
    }
    DSV4_CHECK(args.out.dim(0) >= num_entries(), "out has {} rows, {} blocks close",
               args.out.dim(0), num_entries());
  }

  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }

  // scratch: [3, width]
  void pool(int64_t index, float* scratch) const;
  void clear_rest() const;  // rows of out past the entries
  void update_state(int64_t index) const;

 private:
  TokenRow token_row(const Sequence& sequence, int64_t position) const;
  void keep(const Sequence& sequence, const TokenRow& token, int row) const;

  const CompressorArgs& args_;
  const StateLayout layout_;
  std::vector<Sequence> sequences_;
  std::vector<Entry> entries_;
  std::vector<float> no_ape_;
};

TokenRow Pooling::token_row(const Sequence& sequence, int64_t position) const {
  if (position >= sequence.start) {
    const int64_t token = sequence.first_token + position - sequence.start;
    return {args_.kv.row<float>(token), args_.gate.row<float>(token),
            args_.ape.row<float>(position % layout_.ratio)};
  }
  const float* kv = sequence.state + int64_t{layout_.row_of(position)} * layout_.columns();
  return {kv, kv + layout_.plane(), no_ape_.data()};
}

void Pooling::pool(int64_t index, float* scratch) const {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  const int64_t width = layout_.width, own = entry.block * layout_.ratio;
  const int64_t begin = layout_.overlap ? std::max<int64_t>(0, own - layout_.ratio) : own;
  const int64_t end = own + layout_.ratio;
  // Half of the columns belong to the next block's entry, half to this block's
  // (docs/spec/dsv4.md 5.3).
  const auto half = [&](int64_t position) {
    const int64_t at = layout_.overlap && position >= own ? width : 0;
    const TokenRow row = token_row(*entry.sequence, position);
    return TokenRow{row.kv + at, row.gate + at, row.ape + at};
  };
  float *largest = scratch, *sum = scratch + width, *pooled = scratch + 2 * width;
  std::fill_n(largest, width, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, 2 * width, 0.f);
  for (int64_t position = begin; position < end; ++position) {
    const TokenRow row = half(position);
    HWY_DYNAMIC_DISPATCH(RaiseMax)(row.gate, row.ape, largest, width);
  }
  for (int64_t position = begin; position < end; ++position) {
    const TokenRow row = half(position);
    HWY_DYNAMIC_DISPATCH(AddWeighted)(row.kv, row.gate, row.ape, largest, sum, pooled, width);
  }
  for (int64_t c = 0; c < width; ++c) pooled[c] /= sum[c];
  dsv4::cpu::store(args_.out, index * args_.out.row_stride(), width, pooled);
}

void Pooling::clear_rest() const {
  const std::vector<float> zeros(static_cast<size_t>(layout_.width), 0.f);
  for (int64_t i = num_entries(); i < args_.out.dim(0); ++i) {
    dsv4::cpu::store(args_.out, i * args_.out.row_stride(), layout_.width, zeros.data());
  }
}

void Pooling::keep(const Sequence& sequence, const TokenRow& token, int row) const {
  float* kv = sequence.state + int64_t{row} * layout_.columns();
  float* gate = kv + layout_.plane();
  std::copy_n(token.kv, layout_.columns(), kv);
  for (int64_t c = 0; c < layout_.columns(); ++c) gate[c] = token.gate[c] + token.ape[c];
}

// Writes the newest tokens of this call, as many as the ring holds.
void Pooling::update_state(int64_t index) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(index)];
  for (int64_t p = std::max(sequence.start, sequence.end - layout_.rows()); p < sequence.end; ++p)
    keep(sequence, token_row(sequence, p), layout_.row_of(p));
}

}  // namespace

void run(const Context&, const CompressorArgs& args) {
  const Pooling pooling(args);
  pooling.clear_rest();
  constexpr int64_t kOperations = 20;  // per value: two passes and an exponential
#pragma omp parallel if (dsv4::cpu::worth_sharing(kOperations * args.kv.numel()))
  {
    std::vector<float> scratch(static_cast<size_t>(3 * args.layout.width));
#pragma omp for
    for (int64_t i = 0; i < pooling.num_entries(); ++i) pooling.pool(i, scratch.data());
#pragma omp for
    for (int64_t i = 0; i < pooling.num_sequences(); ++i) pooling.update_state(i);
  }
}

}  // namespace dsv4::compressor_kernel::cpu
#endif  // HWY_ONCE
