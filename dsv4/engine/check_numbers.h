// Finds where numbers stop being numbers: the first op of a step whose output holds NaN or
// infinity, and the weight that it multiplies.
//
//   linear with layers.3.ffn.gate.weight: row 12, column 5 of the output is nan
//
// The engine runs this check on its own when logits are not finite or a selection meets NaN;
// --check-numbers runs it in every step. It reads every output once, on a GPU through a copy.

#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "dsv4/base/not_finite.h"
#include "dsv4/model/model.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

// Runs every call and throws NotFinite after the first whose output is not finite. Scores of the
// indexer may be -infinity.
class CheckNumbers final : public Observer {
 public:
  explicit CheckNumbers(const Model& model);  // must outlive the check
  void observe(const OpCall& call) override;

 private:
  std::map<const std::byte*, std::string> names_;  // of weights, by the address of their data
  std::string latest_;                             // the last named weight that an op used
};

// Throws NotFinite if a row holds NaN or infinity. logits: [n, V] f32 on the host
void require_finite_logits(const ConstTensorView& logits);

// Computes `ids` again from the first, with CheckNumbers: a sentence with the place of the first
// value that is not finite, or nothing if there is none this time.
std::optional<std::string> find_non_finite(const Model& model, const Context& context,
                                           std::span<const int32_t> ids);

// Throws NotFinite with that place, or with the text of `error`.
[[noreturn]] void fail_with_place(const Model& model, const Context& context,
                                  std::span<const int32_t> ids, const NotFinite& error);

}  // namespace dsv4
