#include "dsv4/quality/logits_source.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/check_numbers.h"

namespace dsv4 {
namespace {

CacheLimits limits(const Model& model, const WindowOptions& options, int64_t chunk) {
  if (options.context > model.config().max_positions) {
    fail(ErrorCode::kBadInput, "a context of {} tokens exceeds the {} positions of {}",
         options.context, model.config().max_positions, model.checkpoint().folder());
  }
  const int64_t step = std::min(chunk, options.context);
  return {.max_tokens = options.context,
          .max_sequences = 1,
          .max_batch_tokens = step,
          .max_logits_rows = step};
}

}  // namespace

ModelLogits::ModelLogits(const Model& model, const Context& context, const WindowOptions& options,
                         int64_t chunk)
    : model_(model),
      context_(context),
      vocab_(model.config().vocab_size),
      executor_(model, context, limits(model, options, chunk)) {
}

void ModelLogits::trace_experts(ExpertTrace* trace) {
  executor_.trace_experts(trace);
}

ConstTensorView ModelLogits::next(const Piece& piece) {
  if (piece.fresh) {
    if (seq_) executor_.cache().close(*seq_);
    seq_ = executor_.cache().open();
    read_.clear();
  }
  DSV4_CHECK(seq_.has_value(), "the first piece must start a sequence (fresh)");
  const Work work{*seq_, piece.ids,
                  piece.targets.empty() ? Work::Logits::kNone : Work::Logits::kAll};
  read_.insert(read_.end(), piece.ids.begin(), piece.ids.end());
  try {
    return executor_.run({&work, 1});
  } catch (const NotFinite& error) {
    if (context_.observer != nullptr) throw;
    fail_with_place(model_, context_, read_, error);
  }
}

}  // namespace dsv4
