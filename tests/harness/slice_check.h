// check_slices: what ranks need of implementations under --deterministic. Each rank has some output
// rows of a weight, or some heads, and its call must give them the bits of the call of all,
// whatever the cut. Implementations that claim batch invariance claim this too where ranks cut
// their op: how a sum is divided follows from its own length, never from the number of rows or
// heads of a call.
//
// For each such implementation that takes the whole call: its bits against those of each slice by
// the same implementation, where that takes it. And for the one that a dispatch would choose:
// against those by the one that it would choose for the slice, which may be another. On the CPU on
// every instruction set of this machine.

#pragma once

#include <algorithm>
#include <cstring>

#include "tests/harness/op_check.h"

namespace dsv4::test {

// A call of some rows or heads. got: what it writes; want: the same part of what the whole call
// writes, of equal shapes, with any strides
template <class Args>
struct Slice {
  Args args;
  std::vector<std::pair<TensorView, TensorView>> got_want;
};

// Random places at which `units` are cut, with both ends; about one in `parts`.
inline std::vector<int64_t> random_cuts(Rng& rng, int64_t units, int64_t parts) {
  std::vector<int64_t> cuts = {0, units};
  for (int64_t i = 1; i < parts; ++i) cuts.push_back(rng.below(units + 1));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The elements in order, without gaps.
inline void append_elements(std::vector<std::byte>& bytes, const TensorView& view) {
  if (view.rank == 1) {
    bytes.insert(bytes.end(), view.data, view.data + view.dim(0) * item_bytes(view.dtype));
    return;
  }
  for (int64_t i = 0; i < view.dim(0); ++i) {
    TensorView row = view.slice(0, i, i + 1);
    std::copy(row.shape.begin() + 1, row.shape.end(), row.shape.begin());
    std::copy(row.stride.begin() + 1, row.stride.end(), row.stride.begin());
    --row.rank;
    append_elements(bytes, row);
  }
}

template <class Args>
class SliceCheck {
 public:
  using Slices = std::vector<Slice<Args>>;

  SliceCheck(Table<Args> table, const Context& context, Arena& arena, const Args& whole,
             const Slices& slices)
      : table_(table), context_(context), arena_(arena), whole_(whole), slices_(slices) {
    context_.need_batch_invariant = true;
    if (context_.device == nullptr) context_.workspace = &host_workspace_;
  }

  // Returns how many comparisons there were.
  int run() {
    const Impl<Args>* const chosen = first_that_takes(whole_);
    for (const Impl<Args>& impl : table_) {
      if (reason_against(impl, context_, whole_) != nullptr) continue;
      const std::vector<Bytes> want = whole_by(impl);
      for (size_t i = 0; i < slices_.size(); ++i) {
        if (reason_against(impl, context_, slices_[i].args) == nullptr)
          compare(impl, i, want[i], impl);
        const Impl<Args>* const other = first_that_takes(slices_[i].args);
        if (&impl == chosen && other != nullptr && other != chosen)
          compare(*other, i, want[i], impl);
      }
    }
    return compared_;
  }

 private:
  using Bytes = std::vector<std::byte>;

  const Impl<Args>* first_that_takes(const Args& args) const {
    for (const Impl<Args>& impl : table_)
      if (reason_against(impl, context_, args) == nullptr) return &impl;
    return nullptr;
  }

  void call(const Impl<Args>& impl, const Args& args) {
    const ThreadCount scope(2);
    arena_.prepare();
    impl.run(context_, args);
    if (context_.device != nullptr) wait(*context_.device);
  }

  std::vector<Bytes> whole_by(const Impl<Args>& impl) {
    call(impl, whole_);
    std::vector<Bytes> want(slices_.size());
    for (size_t i = 0; i < slices_.size(); ++i)
      for (const auto& [got, part] : slices_[i].got_want) append_elements(want[i], part);
    return want;
  }

  void compare(const Impl<Args>& impl, size_t slice, const Bytes& want, const Impl<Args>& of) {
    call(impl, slices_[slice].args);
    Bytes got;
    for (const auto& [part, all] : slices_[slice].got_want) append_elements(got, part);
    EXPECT_TRUE(got == want) << "slice " << slice << " by " << impl.name
                             << " has other bits than the whole by " << of.name;
    ++compared_;
  }

  Table<Args> table_;
  Context context_;
  Arena& arena_;
  const Args& whole_;
  const Slices& slices_;
  Scratch host_workspace_;
  int compared_ = 0;
};

template <class Args>
void check_slices(Table<Args> table, const Context& context, Arena& arena, const Args& whole,
                  const std::vector<Slice<Args>>& slices, const std::string& name) {
  SCOPED_TRACE(name);
  arena.freeze();
  for_each_target([&] {
    EXPECT_GT((SliceCheck<Args>(table, context, arena, whole, slices).run()), 0)
        << "nothing was compared";
  });
  if (gpu() == nullptr) return;
  Context on_gpu = context;
  on_gpu.device = gpu();
  EXPECT_GT((SliceCheck<Args>(table, on_gpu, arena, whole, slices).run()), 0)
      << "nothing was compared on the GPU";
}

}  // namespace dsv4::test
