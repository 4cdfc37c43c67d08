#include "dsv4/ops/sparse_mla/by_request.h"

namespace dsv4 {
namespace {

// An axis of one element in front of `axis`.
template <class View>
void insert_axis(View& view, int axis) {
  if (view.rank == 0) return;
  for (int i = view.rank; i > axis; --i) {
    view.shape[static_cast<size_t>(i)] = view.shape[static_cast<size_t>(i - 1)];
    view.stride[static_cast<size_t>(i)] = view.stride[static_cast<size_t>(i - 1)];
  }
  view.shape[static_cast<size_t>(axis)] = 1;
  view.stride[static_cast<size_t>(axis)] = 0;
  ++view.rank;
}

}  // namespace

SparseMlaArgs by_request(const SparseMlaArgs& args) {
  SparseMlaArgs all = args;
  if (args.q.rank == 4) return all;
  insert_axis(all.q, 1);
  insert_axis(all.window.rows, 1);
  insert_axis(all.compressed.rows, 1);
  insert_axis(all.out, 1);
  insert_axis(all.lse, 2);
  insert_axis(all.max_logits, 2);
  return all;
}

}  // namespace dsv4
