// What a step computes, and what its rows of logits give the requests. A round, a request with
// drafts, has a row for its newest token and one for each draft; of every other request that gets a
// token there is one row (speculation.h).

#include <algorithm>
#include <iterator>

#include "dsv4/engine/engine.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Engine::Batch Engine::make_batch(const Schedule& plan) {
  std::vector<Request*> running;
  for (Request& request : requests_) {
    if (running.size() == num_running_) break;
    running.push_back(&request);
  }
  Batch batch;
  int64_t spare_rows = max_scored_tokens(plan, running);  // besides one for each request
  for (const Schedule::Chunk& chunk : plan.chunks) {
    Request& request = *running[chunk.request];
    // A request that began in this step may have found more than its plan knew: another one that
    // began before it brought a prefix back from host memory or the disk.
    int64_t count = std::min(chunk.count, request.length() - request.cached);
    if (request.scoring()) {
      count = std::min(count, 1 + spare_rows);
      spare_rows -= count - 1;
    }
    prefixes_.reserve(request, count);
    batch.chunks.push_back({.request = &request, .count = count});
    if (!request.decoding()) batch.prefill_tokens += count;
  }
  choose_drafts(plan, batch);
  for (Batch::Chunk& chunk : batch.chunks) add_work(batch, chunk);
  return batch;
}

// Drafts take pages that are free, and no others. The terms of all rows of a step fit the lists of
// a device's sampler, which have room for one row of each sequence.
void Engine::choose_drafts(const Schedule& plan, const Batch& batch) {
  if (!speculation_.on()) return;
  int64_t terms =
      options_.max_sequences * max_token_terms(model_.config().vocab_size, options_.max_tokens);
  for (const Batch::Chunk& chunk : batch.chunks) terms -= std::ssize(chunk.request->terms.list());
  std::vector<Speculation::Proposal> proposals;
  for (size_t i = 0; i < batch.chunks.size(); ++i) {
    Request& request = *batch.chunks[i].request;
    const int64_t of_row = request.terms.size_after(kMaxDrafts);
    int64_t drafts = plan.chunks[i].drafts;
    if (of_row > 0) drafts = std::min(drafts, std::max<int64_t>(terms, 0) / of_row);
    if (drafts > 0 && !executor_.cache().reserve(request.seq, 1 + drafts)) drafts = 0;
    terms -= drafts * of_row;
    Speculation::limit(request, drafts);
    proposals.push_back({.request = &request, .most = drafts});
  }
  broken_ = true;  // as in run_batch(): a drafter runs in the network too
  speculation_.propose(proposals);
  broken_ = false;
  for (const Speculation::Proposal& one : proposals) {
    if (one.most == 0 || !one.request->round.drafts.empty()) continue;
    executor_.cache().truncate(one.request->seq, one.request->cached);
    prefixes_.reserve(*one.request, 1);
  }
}

void Engine::add_work(Batch& batch, Batch::Chunk& chunk) {
  Request& request = *chunk.request;
  Round& round = request.round;
  if (!round.drafts.empty()) {
    round.ids = {request.tokens.back()};
    for (const Round::Draft& draft : round.drafts) round.ids.push_back(draft.token);
    chunk.count = std::ssize(round.ids);
    chunk.round = true;
    batch.work.push_back(
        {.seq = request.seq, .ids = round.ids, .logits = Work::Logits::kAll, .drafted = true});
    for (size_t row = 0; row < round.ids.size(); ++row) batch.rows.push_back({&request, 0, row});
    return;
  }
  const std::span<const int32_t> rest =
      std::span<const int32_t>(request.tokens).subspan(static_cast<size_t>(request.cached));
  const bool scoring = request.scoring(), last = chunk.count == std::ssize(rest);
  batch.work.push_back({.seq = request.seq,
                        .ids = rest.first(static_cast<size_t>(chunk.count)),
                        .logits = scoring ? Work::Logits::kAll
                                  : last  ? Work::Logits::kLast
                                          : Work::Logits::kNone,
                        .checkpoint = prefixes_.checkpoint_after(request, chunk.count)});
  for (int64_t i = 1; scoring && i <= chunk.count - last; ++i)
    batch.rows.push_back({&request, request.cached + i});
  if (last) batch.rows.push_back({&request, 0});
}

Engine::Event Engine::accept(Request& request, Sampled token) {
  Event event{.sink = request.sink, .id = request.id, .finished = true, .why = Finish::kStop};
  const std::vector<int32_t>& stop = request.params.stop;
  const bool stopped = std::find(stop.begin(), stop.end(), token.id) != stop.end();
  if (!stopped && !request.blocked) request.advance(token.id);
  if (request.blocked) event.why = Finish::kConstraintFailed;
  if (stopped || request.blocked || request.state == TokenConstraint::kEnded) return event;
  request.tokens.push_back(token.id);
  request.terms.add(token.id);
  if (++request.generated == 1) request.stats.prefill_seconds = seconds_since(request.first_run);
  event.has_token = true;
  event.token = std::move(token);
  event.finished = request.generated == request.params.max_new_tokens;
  event.why = Finish::kLength;
  return event;
}

std::vector<Sampled> Engine::sample(const Batch& batch) {
  if (batch.rows.empty()) return {};
  // Masks are made here, while a device still computes the logits.
  SampleLists lists(model_.config().vocab_size);
  TokenTerms terms;  // of the row: the request's, and its drafts before the row
  for (const auto& [request, scores, in_round] : batch.rows) {
    if (scores > 0) {
      // The one token that the mask leaves is chosen, and its log-probability is of all logits.
      lists.add({.temperature = 0, .top_logprobs = request->params.sampling.top_logprobs}, 0);
      std::ranges::fill(lists.mask(), 0);
      const auto token = static_cast<size_t>(request->tokens[static_cast<size_t>(scores)]);
      lists.mask()[token / 32] |= uint32_t{1} << (token % 32);
      continue;
    }
    if (in_round == 0) {
      terms = request->terms;
    } else {
      terms.add(request->round.ids[in_round]);
    }
    lists.add(request->params.sampling, static_cast<uint64_t>(request->generated) + in_round,
              terms.list());
    const auto begin = Clock::now();
    request->restrict(lists, in_round);
    if (request->params.constraint != nullptr) stats_.mask_seconds += seconds_since(begin);
  }
  return executor_.sample(lists.rows());
}

void Engine::commit_one(Request& request) {
  const bool checkpoint = prefixes_.checkpoint_after(request, 1) > 0;
  executor_.commit_one(request.seq);
  if (checkpoint) {
    executor_.keep_streams();
    prefixes_.store(request, request.cached + 1);
  }
  ++request.cached;
}

// Between two rows everything is as between two plain steps. What was computed after the last
// accepted row is overwritten by later steps, which derive what they read from the length.
int64_t Engine::deliver_round(Request& request, std::span<Sampled> tokens,
                              std::vector<Event>& events) {
  stats_.masks += request.round.masks;
  const std::vector<Round::Draft>& drafts = request.round.drafts;
  const bool round = !drafts.empty();
  const size_t first = events.size();
  if (round) events.push_back({.sink = request.sink, .id = request.id, .has_drafts = true});
  const size_t most = std::clamp<size_t>(request.round.accepted_rows, 1, tokens.size());
  size_t row = 0;
  Speculation::Given given{.first = tokens[0].id};
  for (bool goes_on = true; goes_on; ++row) {
    if (round) commit_one(request);
    given.last = tokens[row].id;
    events.push_back(accept(request, std::move(tokens[row])));
    events.back().later = row > 0;
    goes_on = !events.back().finished && row + 1 < most && given.last == drafts[row].token;
  }
  given.tokens = static_cast<int64_t>(row);
  const DraftCounts counts = speculation_.count(request, given);
  if (round) {
    events[first].drafts = counts;
    request.stats.drafts += events[first].drafts;
    executor_.cache().truncate(request.seq, request.cached);  // pages that were reserved go back
  }
  request.round = {};
  if (events.back().finished) {
    finish(request, events.back().why, events.back());
    const auto at = std::find_if(requests_.begin(), requests_.end(),
                                 [&](const Request& other) { return &other == &request; });
    remove(at, static_cast<size_t>(std::distance(requests_.begin(), at)));
  }
  return static_cast<int64_t>(row);
}

int64_t Engine::deliver(const Batch& batch, std::vector<Sampled> tokens,
                        std::vector<Event>& events) {
  int64_t drawn = 0;
  for (size_t i = 0; i < tokens.size();) {
    Request& request = *batch.rows[i].request;
    const int64_t scores = batch.rows[i].scores;
    if (scores == 0) {
      const size_t rows = 1 + request.round.drafts.size();
      drawn += deliver_round(request, std::span(tokens).subspan(i, rows), events);
      i += rows;
      continue;
    }
    Sampled& token = tokens[i++];
    if (scores <= request.scored) continue;  // computed again after a preemption
    request.scored = scores;
    events.push_back({.sink = request.sink,
                      .id = request.id,
                      .has_token = true,
                      .of_prompt = true,
                      .token = std::move(token)});
  }
  executor_.keep_streams();
  return drawn;
}

}  // namespace dsv4
