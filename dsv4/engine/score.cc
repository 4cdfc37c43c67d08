#include "dsv4/engine/score.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/check_numbers.h"

namespace dsv4 {

void score(const Model& model, const Context& context, std::span<const int32_t> ids, int64_t chunk,
           const std::function<void(int64_t, const ConstTensorView&)>& on_chunk) {
  const auto total = static_cast<int64_t>(ids.size());
  if (total == 0) fail(ErrorCode::kBadInput, "no token ids to score");
  DSV4_CHECK(chunk >= 1, "chunk of {} tokens", chunk);
  check_token_ids(ids, model.config().vocab_size);
  if (total > model.config().max_positions) {
    fail(ErrorCode::kBadInput, "{} tokens exceed the model's {} positions", total,
         model.config().max_positions);
  }
  const int64_t step = std::min(chunk, total);
  Executor executor(
      model, context,
      {.max_tokens = total, .max_sequences = 1, .max_batch_tokens = step, .max_logits_rows = step});
  const SeqId seq = executor.cache().open();
  for (int64_t first = 0; first < total; first += step) {
    const int64_t count = std::min(step, total - first);
    const Work work{seq, ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                    Work::Logits::kAll};
    try {
      on_chunk(first, executor.run({&work, 1}));
    } catch (const NotFinite& error) {
      if (context.observer != nullptr) throw;
      fail_with_place(model, context, ids.first(static_cast<size_t>(first + count)), error);
    }
  }
}

}  // namespace dsv4
