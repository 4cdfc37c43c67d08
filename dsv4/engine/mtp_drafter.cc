#include "dsv4/engine/mtp_drafter.h"

#include <algorithm>

#include "dsv4/base/not_finite.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/request_state.h"

namespace dsv4 {
namespace {

// A request in the chain.
struct Link {
  DraftWant* want;
  TokenTerms terms;
  int32_t row = 0;  // in the latest pass

  int64_t place() const { return std::ssize(want->drafts); }
  int32_t token() const { return want->drafts.empty() ? want->tokens.back() : want->drafts.back(); }
};

void add_row(SampleLists& lists, const Link& link) {
  const RequestState& request = *link.want->request;
  SamplingParams params = request.params.sampling;
  params.top_logprobs = 0;
  lists.add(params, static_cast<uint64_t>(request.generated + link.place()), link.terms.list());
  const std::vector<Round::Row>& rows = request.round.rows;
  if (link.place() == 0 && !rows.empty() && !rows[0].mask.empty())
    std::ranges::copy(rows[0].mask, lists.mask().begin());
}

// One pass for all of them. Those that guess no further leave the chain.
void extend(Executor& executor, std::vector<Link>& chain) {
  std::vector<Executor::DraftRow> rows;
  for (const Link& link : chain)
    rows.push_back({link.want->request->seq, link.token(), link.place(), link.row});
  const ConstTensorView logits = executor.draft(rows);
  SampleLists lists(logits.dim(1));
  for (const Link& link : chain) add_row(lists, link);
  require_finite_logits(logits);
  const std::vector<Sampled> tokens = executor.sample_drafts(lists.rows());
  std::vector<Link> longer;
  for (size_t i = 0; i < chain.size(); ++i) {
    Link& link = chain[i];
    link.row = static_cast<int32_t>(i);
    link.want->drafts.push_back(tokens[i].id);
    link.terms.add(tokens[i].id);
    if (link.place() < link.want->most) longer.push_back(std::move(link));
  }
  chain = std::move(longer);
}

}  // namespace

void MtpDrafter::propose(std::span<DraftWant> wants) {
  std::vector<Link> chain;
  for (DraftWant& want : wants) chain.push_back({.want = &want, .terms = want.request->terms});
  while (!chain.empty()) {
    try {
      extend(executor_, chain);
    } catch (const NotFinite&) {  // an op met it, of whichever request
      for (const Link& link : chain) link.want->failed = true;
      return;
    }
  }
}

}  // namespace dsv4
