// dsv4_weight as the ops read it: rows (formats/weight.h), whatever the caller's layout is.

#pragma once

#include <optional>
#include <vector>

#include "dsv4/capi/call.h"
#include "dsv4/capi/tensors.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/buffer.h"
#include "dsv4/tensor/scratch.h"
#include "dsv4_kbit.h"

namespace dsv4::capi {

// The tensors of a weight in its own layout, checked, and its view as rows without data and scale.
struct StoredWeight {
  WeightView rows;
  TensorView data, scale;
  int32_t layout = DSV4_ROWS;
};
StoredWeight stored_weight(const char* name, const dsv4_weight& weight, Tensors& tensors);

// What follows on the context's device starts after all that its stream has been given: a product
// with an early launch (LaunchShape::pdl) may read weights before it waits for the kernel before
// it, but no kernel starts before a memset has ended. Takes kEndBytes of the workspace.
void end_early_launches(const Context& context);
inline constexpr int64_t kEndBytes = 256;

// The weights of one call as rows. Rows of tiled weights and of images are made when the call runs
// (MadeRows); until then their views have shapes, and addresses without memory whose distances are
// those of the memory that they will get.
class KbitWeights {
 public:
  explicit KbitWeights(Tensors& tensors) : tensors_(tensors) {}

  // Throws with the value when a field contradicts dsv4_kbit.h.
  WeightView rows(const char* name, const dsv4_weight& weight);
  std::vector<WeightView> rows(const char* name, const dsv4_weight* weights, int64_t count);
  // A weight in layout DSV4_IMAGE as it is: data is the image.
  WeightView image(const char* name, const dsv4_weight& weight);
  // What the made rows take: 0 on the host.
  int64_t workspace_bytes(const Context& context) const {
    return context.device == nullptr || made_bytes_ == 0 ? 0 : made_bytes_ + kEndBytes;
  }

 private:
  friend class MadeRows;
  struct Made {
    StoredWeight stored;
    WeightView rows;
  };
  TensorView reserve(DType dtype, int64_t rows, int64_t columns);

  Tensors& tensors_;
  std::vector<Made> made_;
  int64_t made_bytes_ = 0;
};

// Makes the rows: on the host in memory of its own, on a GPU in the workspace, where they live as
// long as this object.
class MadeRows {
 public:
  MadeRows(const KbitWeights& weights, const Context& context);
  WeightView operator()(const WeightView& rows) const;

 private:
  ConstTensorView placed(const ConstTensorView& view) const;

  int64_t bytes_;
  std::optional<Scratch::Scope> scope_;
  Buffer host_;
  std::byte* memory_ = nullptr;
};

// A call of a C function. Call(params) has the members `tensors` and bind().
template <class Call, class Params>
int run_call(const Params* params, const dsv4_call* call) {
  return guarded([&] {
    const Call bound(checked("params", params));
    run(call, bound.tensors.device(), bound.bind());
  });
}
template <class Call, class Params>
int ask_workspace(const Params* params, const dsv4_call* call, size_t* bytes) {
  return guarded([&] {
    const Call bound(checked("params", params));
    write_workspace_bytes(call, bound.tensors.device(), bound.bind(), bytes);
  });
}

// Data and scale of the rows are contiguous where `stored` is not rows itself.
void rows_from_layout(const Context& context, const StoredWeight& stored, const WeightView& rows);
void layout_from_rows(const Context& context, const WeightView& rows, const StoredWeight& to);

}  // namespace dsv4::capi
