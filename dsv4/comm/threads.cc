#include "dsv4/comm/threads.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace dsv4 {
namespace {

// The tensors have equal dtypes and shapes.
void copy_rows(const TensorView& to, const TensorView& from) {
  const auto bytes = static_cast<size_t>(to.dim(1) * item_bytes(to.dtype));
  if (bytes == 0) return;
  const auto row = [](const TensorView& view, int64_t i) {
    return view.data + i * view.row_stride() * item_bytes(view.dtype);
  };
  for (int64_t i = 0; i < to.dim(0); ++i) std::memcpy(row(to, i), row(from, i), bytes);
}

void copy_rows_of(int owner, const Gathered& to, const TensorView& from) {
  for (int64_t i = 0; i < to.all.dim(0); ++i)
    if (to.owner(i) == owner) copy_rows(to.all.slice(0, i, i + 1), from.slice(0, i, i + 1));
}

}  // namespace

class ThreadRanks::Rank final : public Communicator {
 public:
  Rank(ThreadRanks& group, ShardId id) : group_(group), id_(id) {}
  ShardId id() const override { return id_; }

  void gather(std::span<const Gathered> tensors, const Place& place) override {
    Shown shown{.place = place};
    for (const Gathered& tensor : tensors) shown.tensors.push_back(tensor.all);
    exchange(std::move(shown), [&](int other, const std::vector<TensorView>& theirs) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].by_rows()) {
          copy_rows_of(other, tensors[i], theirs[i]);
          continue;
        }
        const ColumnEnds& ends = tensors[i].ends;
        const int64_t begin = first_column(ends, other), end = ends[static_cast<size_t>(other)];
        copy_rows(tensors[i].all.slice(1, begin, end), theirs[i].slice(1, begin, end));
      }
    });
  }

  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override {
    exchange(
        {.place = place, .tensors = {part}}, [&](int other, const std::vector<TensorView>& theirs) {
          if (id_.rank != 0) return;
          const int64_t begin = first_column(ends, other), end = ends[static_cast<size_t>(other)];
          DSV4_CHECK(theirs[0].dim(1) == end - begin, "{}: {} columns of rank {}, want {}",
                     to_string(place), theirs[0].dim(1), other, end - begin);
          copy_rows(all.slice(1, begin, end), theirs[0]);
        });
  }

  void gather_rows(const TensorView& all, const ConstTensorView& owners,
                   const Place& place) override {
    const ColumnEnds each = column_ends(id_.world, id_.world, 1);  // rank r has the id r
    const Gathered one[] = {{all, each, owners}};
    gather(one, place);
  }

 private:
  // copy(other, its tensors) for every other rank, between two meetings.
  template <class Copy>
  void exchange(Shown shown, const Copy& copy) {
    group_.show(id_.rank, std::move(shown));
    group_.meet(id_.rank);
    group_.check_shown();
    for (int other = 0; other < id_.world; ++other)
      if (other != id_.rank) copy(other, group_.shown_[static_cast<size_t>(other)].tensors);
    group_.meet(id_.rank);
  }

  ThreadRanks& group_;
  ShardId id_;
};

ThreadRanks::ThreadRanks(int world, std::chrono::milliseconds limit)
    : limit_(limit),
      shown_(static_cast<size_t>(world)),
      here_(static_cast<size_t>(world)),
      place_(static_cast<size_t>(world), Place{"its first exchange"}) {
  DSV4_CHECK(world >= 1 && limit.count() > 0, "{} ranks that wait {} ms", world, limit.count());
  for (int r = 0; r < world; ++r)
    ranks_.push_back(std::make_unique<Rank>(*this, ShardId{r, world}));
}

ThreadRanks::~ThreadRanks() = default;

Communicator& ThreadRanks::rank(int r) {
  return *ranks_[static_cast<size_t>(r)];
}

void ThreadRanks::abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why_.empty()) why_ = why;
  met_.notify_all();
}

std::string ThreadRanks::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void ThreadRanks::show(int rank, Shown shown) {
  const std::lock_guard lock(mutex_);
  place_[static_cast<size_t>(rank)] = shown.place;
  shown_[static_cast<size_t>(rank)] = std::move(shown);
}

// "rank 2", "ranks 1, 3": those that are not at the meeting.
std::string ThreadRanks::missing() const {
  std::string list;
  for (size_t r = 0; r < here_.size(); ++r)
    if (!here_[r]) list += fmt::format("{}{}", list.empty() ? "" : ", ", r);
  return (list.find(',') == list.npos ? "rank " : "ranks ") + list;
}

void ThreadRanks::meet(int rank) {
  std::unique_lock lock(mutex_);
  if (!why_.empty()) throw RanksStopped(why_);
  const uint64_t meeting = meetings_;
  here_[static_cast<size_t>(rank)] = true;
  if (++arrived_ == world()) {
    arrived_ = 0;
    ++meetings_;
    std::fill(here_.begin(), here_.end(), false);
    met_.notify_all();
    return;
  }
  met_.wait_until(lock, std::chrono::steady_clock::now() + limit_,
                  [&] { return meetings_ != meeting || !why_.empty(); });
  if (meetings_ != meeting) return;
  if (why_.empty()) {
    why_ = fmt::format("no answer from {} for {} s ({})", missing(),
                       static_cast<double>(limit_.count()) / 1000,
                       to_string(place_[static_cast<size_t>(rank)]));
    met_.notify_all();
  }
  throw RanksStopped(why_);
}

// All ranks compare all of them, so that none copies from one that has left with an error.
void ThreadRanks::check_shown() const {
  const Shown& first = shown_.front();
  for (size_t rank = 1; rank < shown_.size(); ++rank) {
    const Shown& other = shown_[rank];
    DSV4_CHECK(other.place == first.place && other.tensors.size() == first.tensors.size(),
               "rank {} is at \"{}\", rank 0 at \"{}\"", rank, to_string(other.place),
               to_string(first.place));
    for (size_t i = 0; i < other.tensors.size(); ++i) {
      const TensorView &a = other.tensors[i], &b = first.tensors[i];
      DSV4_CHECK(a.rank == 2 && b.rank == 2 && a.dim(0) == b.dim(0) && a.dtype == b.dtype,
                 "{}: rank {} brings {}, rank 0 {}", to_string(other.place), rank, to_string(a),
                 to_string(b));
    }
  }
}

}  // namespace dsv4
