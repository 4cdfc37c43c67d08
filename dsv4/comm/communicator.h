// One rank's end of the exchanges of a step (docs/adr/0030-ranks-exchange-values.md).
//
// A communicator moves finished values and adds nothing: what an exchange gives every rank is, bit
// for bit, what the owners computed. All ranks make the same calls in the same order. On the host a
// call returns when the values are there, and throws Error on every rank of the group when one rank
// failed or does not come. On a GPU it is enqueued, and the group is checked after a wait.
//
//   single    one rank whose peers are not there: nothing moves
//   threads   a thread per rank, host memory
//   device    GPUs of this process, or ranks that share one; a kernel per exchange
//   local     one rank on a GPU in a benchmark: copies of its own values (local_copies.h)
//
// The tensors are those of the calling rank, in the memory in which its ops compute.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/comm/shard_id.h"
#include "dsv4/comm/symmetric_memory.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct PeerWords;  // device/peer_words.h

// Names an exchange in errors: "gather h, layer 17". All ranks must be at the same one.
struct Place {
  const char* what;
  int64_t layer = -1;  // -1: outside of layers
  bool operator==(const Place&) const;
};
std::string to_string(const Place& place);

// Where the columns, or ids, of each rank end: rank r has [ends[r - 1], ends[r]).
using ColumnEnds = std::vector<int64_t>;
// The ends for n columns cut in units of `unit` columns, each of them standing for `factor` ones.
ColumnEnds column_ends(int world, int64_t n, int64_t unit, int64_t factor = 1);
inline int64_t first_column(const ColumnEnds& ends, int rank) {
  return rank == 0 ? 0 : ends[static_cast<size_t>(rank) - 1];
}

// A tensor of which every rank computes some columns, or some rows.
struct Gathered {
  TensorView all;  // [rows, n]; the calling rank has written its own part; rows may be strided
  const ColumnEnds& ends;
  // Rows: [rows] I32, equal on all ranks. Row i is that of the rank r where ids[i] is in
  // [ends[r - 1], ends[r]), and of rank 0 where it is nowhere. Empty: columns
  ConstTensorView ids{};
  // In symmetric memory: the kernels before have stored this rank's part on every rank. Other ranks
  // need not have done so.
  bool stored = false;
  // Likewise, but nothing is moved, on any rank: kernels read the others' parts where they are.
  bool stays = false;

  bool by_rows() const { return ids.rank > 0; }
  int owner(int64_t row) const { return owner_of(ends, ids.as<int32_t>()[row]); }
  static int owner_of(const ColumnEnds& ends, int64_t id);
};

// Bytes that a rank gets of the others. The owners of rows may be known on a GPU only: the bytes of
// equally likely ids.
int64_t received_bytes(const Gathered& tensor, int rank);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual ShardId id() const = 0;
  // Null: there is none, on any rank.
  virtual SymmetricMemory* symmetric() { return nullptr; }

  // Every rank gets all of each tensor, but for tensors that stay. Either all tensors are in
  // symmetric memory, or none is.
  virtual void gather(std::span<const Gathered> tensors, const Place& place) = 0;
  // The exchange of a tensor's columns that the next kernel makes as it reads them, on every rank,
  // in place of gather(). `all`: [rows, n]; nothing is enqueued here. Empty, on every rank: kernels
  // cannot make this one.
  virtual PeerWords inside(const TensorView& all, const ColumnEnds& ends, const Place& place);
  // Rank 0 gets all columns in `all`, [rows, n]. `part`: the columns of the calling rank, on rank 0
  // those of `all`; there alone `all` is read.
  virtual void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
                       const Place& place) = 0;
  // Every rank gets all rows: row i of `all`, [rows, n], is written by rank owners[i], [rows] I32.
  virtual void gather_rows(const TensorView& all, const ConstTensorView& owners,
                           const Place& place) = 0;
};

// Every rank gets all rows of `all`, [rows, n] without gaps, of which rank r has written the rows
// [ends[r - 1], ends[r]). They are moved as columns of one row; in several exchanges where that has
// more than most_bytes, which an exchange can hold.
inline constexpr int64_t kMostRowBytes = int64_t{32} << 20;
void gather_runs_of_rows(Communicator& ranks, const TensorView& all, const ColumnEnds& ends,
                         const Place& place, int64_t most_bytes = kMostRowBytes);

// A rank whose peers are not there. The only rank of a world of one has all values already; with
// that of several a dry run makes the calls of its step.
class Single final : public Communicator {
 public:
  // symmetric: what a dry run takes is counted there
  explicit Single(ShardId id = {}, SymmetricMemory* symmetric = nullptr)
      : id_(id), symmetric_(symmetric) {}
  ShardId id() const override { return id_; }
  SymmetricMemory* symmetric() override { return symmetric_; }
  void gather(std::span<const Gathered> tensors, const Place& place) override;
  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override;
  void gather_rows(const TensorView& all, const ConstTensorView& owners,
                   const Place& place) override;

 private:
  ShardId id_;
  SymmetricMemory* symmetric_;
};

}  // namespace dsv4
