// dsv4_weight as the ops read it: rows (formats/weight.h), whatever the caller's layout is.

#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "dsv4/capi/call.h"
#include "dsv4/capi/tensors.h"
#include "dsv4/formats/weight.h"
#include "dsv4/tensor/buffer.h"
#include "dsv4_kbit.h"

namespace dsv4::capi {

// The weights of one call; it owns the rows that it makes of tiled weights and of images.
class KbitWeights {
 public:
  // shapes_only: for questions about workspace. Nothing is converted, and the data of rows that
  // would have been made must not be read.
  KbitWeights(Tensors& tensors, bool shapes_only) : tensors_(tensors), shapes_only_(shapes_only) {}

  // Throws with the value when a field contradicts dsv4_kbit.h, and kUnsupported for weights on a
  // device that are not rows.
  WeightView rows(const char* name, const dsv4_weight& weight);
  std::vector<WeightView> rows(const char* name, const dsv4_weight* weights, int64_t count);

 private:
  Tensors& tensors_;
  bool shapes_only_;
  std::deque<std::pair<Buffer, Buffer>> made_;  // data and scale of rows
};

// The tensors of a weight in its own layout, checked, and its view as rows without data and scale.
struct StoredWeight {
  WeightView rows;
  TensorView data, scale;
  int32_t layout = DSV4_ROWS;
};
StoredWeight stored_weight(const char* name, const dsv4_weight& weight, Tensors& tensors);

// Throws kUnsupported unless the tensors are on the host.
void require_host(const Tensors& tensors, const char* what);

// A call of a C function. Call(params, shapes_only) has the members `tensors` and bind().
template <class Call, class Params>
int run_call(const Params* params, const dsv4_call* call) {
  return guarded([&] {
    const Call bound(checked("params", params), false);
    run(call, bound.tensors.device(), bound.bind());
  });
}
template <class Call, class Params>
int ask_workspace(const Params* params, const dsv4_call* call, size_t* bytes) {
  return guarded([&] {
    const Call bound(checked("params", params), true);
    write_workspace_bytes(call, bound.tensors.device(), bound.bind(), bytes);
  });
}

// On the host. Data and scale of the rows are contiguous where `stored` is not rows itself.
void rows_from_layout(const StoredWeight& stored, const TensorView& data, const TensorView& scale);
void layout_from_rows(const WeightView& rows, const StoredWeight& to);

}  // namespace dsv4::capi
