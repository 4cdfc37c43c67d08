// A table of 16 or 32 floats in registers, from which every lane looks up its own entry. With eight
// or more lanes the table's vectors are permuted; with fewer, entries are read from memory.
// Included once per Highway target.

#if defined(DSV4_CPU_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_TABLE_INL_H_
#undef DSV4_CPU_TABLE_INL_H_
#else
#define DSV4_CPU_TABLE_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {

template <class D, int kEntries>
class Table {
  static constexpr D d{};
  static constexpr hwy::HWY_NAMESPACE::RebindToSigned<D> di{};
  static constexpr int kLanes = static_cast<int>(hwy::HWY_NAMESPACE::MaxLanes(D()));
  static constexpr bool kPermutes = kLanes >= 8;
  static constexpr int kVectors = kPermutes ? kEntries / kLanes : 1;
  using Vec = hwy::HWY_NAMESPACE::Vec<D>;
  using Indices = hwy::HWY_NAMESPACE::Vec<decltype(di)>;

 public:
  // values: [kEntries]; must outlive the table
  explicit HWY_INLINE Table(const float* values) : values_(values) {
    namespace hn = hwy::HWY_NAMESPACE;
    for (int i = 0; i < kVectors; ++i) vectors_[i] = hn::LoadU(d, values + i * kLanes);
  }

  // index: below kEntries
  HWY_INLINE Vec operator()(Indices index) const {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (!kPermutes) {
      return hn::GatherIndex(d, values_, index);
    } else if constexpr (kVectors == 1) {
      return hn::TableLookupLanes(vectors_[0], hn::IndicesFromVec(d, index));
    } else {
      const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, kLanes - 1)));
      Vec found = hn::TableLookupLanes(vectors_[0], lane);
#pragma GCC unroll 4
      for (int i = 1; i < kVectors; ++i) {
        const auto beyond = hn::RebindMask(d, hn::Gt(index, hn::Set(di, i * kLanes - 1)));
        found = hn::IfThenElse(beyond, hn::TableLookupLanes(vectors_[i], lane), found);
      }
      return found;
    }
  }

 private:
  const float* values_;
  Vec vectors_[kVectors];
};

}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_CPU_TABLE_INL_H_
