#include "dsv4/engine/model_drafter.h"

#include <algorithm>
#include <functional>

#include "dsv4/base/not_finite.h"
#include "dsv4/engine/request_state.h"

namespace dsv4 {
namespace {

void add_row(SampleLists& lists, const RequestState& request) {
  SamplingParams params = request.params.sampling;
  params.top_logprobs = 0;
  lists.add(params, static_cast<uint64_t>(request.generated), request.terms.list());
  const std::vector<Round::Row>& rows = request.round.rows;
  if (!rows.empty() && !rows[0].mask.empty()) std::ranges::copy(rows[0].mask, lists.mask().begin());
}

}  // namespace

void ModelDrafter::propose(std::span<DraftWant> wants) {
  std::vector<DraftWant*> ordered;
  for (DraftWant& want : wants) ordered.push_back(&want);
  std::ranges::stable_sort(ordered, std::greater(), &DraftWant::most);
  std::vector<Executor::DraftRow> rows;
  SampleLists lists(executor_.vocab());
  for (const DraftWant* want : ordered) {
    rows.push_back({want->request->seq, want->tokens.back(), want->most});
    add_row(lists, *want->request);
  }
  std::vector<Executor::Guesses> drafts(rows.size());
  try {
    drafts = executor_.draft(rows, lists.rows());
  } catch (const NotFinite&) {  // CheckNumbers met it
  }
  for (size_t i = 0; i < drafts.size(); ++i) {
    ordered[i]->failed = std::ssize(drafts[i].ids) < rows[i].most;
    ordered[i]->drafts = std::move(drafts[i].ids);
    ordered[i]->chances = std::move(drafts[i].chances);
  }
}

int64_t ModelDrafter::most() const {
  return one_pass() ? executor_.model().config().dspark.block_size : kMaxDrafts;
}

bool ModelDrafter::one_pass() const {
  return executor_.limits().drafter == DrafterKind::kDspark;
}

}  // namespace dsv4
