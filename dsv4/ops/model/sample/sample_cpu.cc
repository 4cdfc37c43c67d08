// A cut rarely keeps more than the likeliest hundred tokens, so the vocabulary is never sorted as
// a whole: candidates are found band by band (by their distance from the largest logit), and only
// as many of a band are sorted as are needed.

#include "dsv4/ops/model/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/reduce.h"
#include "dsv4/ops/model/sample/adjust.h"
#include "dsv4/ops/model/sample/mass.h"

namespace dsv4::sample_kernel::cpu {
namespace {

struct Logits {
  const float* data;
  int64_t size;
  float largest;  // finite
};

struct Candidate {
  float logit;
  int32_t id;
  uint64_t weight;
};

uint64_t mass_of(const Logits& logits, const Weights& weights) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < logits.size; ++i) sum += weights.of(logits.data[i], kExp2Table.data());
  return sum;
}

// The candidates in order: larger logit first, ties to the lowest id; without tokens of no weight.
class Descending {
 public:
  Descending(const Logits& logits, const Weights& weights, double temperature)
      : logits_(logits), weights_(weights), temperature_(temperature) {}

  // Candidate i, or null past the last one. The pointer is valid until the next call.
  const Candidate* at(size_t i) {
    while (i >= found_.size() && above_ > kBottom) find_next_band();
    if (i >= found_.size()) return nullptr;
    while (i >= sorted_) sort_more();
    return &found_[i];
  }

 private:
  static constexpr float kBottom = -std::numeric_limits<float>::infinity();
  static constexpr double kFirstBand = 4;  // in temperatures; each band doubles the depth
  static constexpr double kLastBand = 40;  // there, no token has weight
  static constexpr size_t kFirstRun =
      64;  // candidates sorted at first; each run doubles their count

  // Adds the logits in [floor, above_), all below those found before.
  void find_next_band() {
    const double depth = static_cast<double>(logits_.largest) - depth_ * temperature_;
    const bool last = depth_ > kLastBand || !(depth > std::numeric_limits<float>::lowest());
    const float floor = last ? std::numeric_limits<float>::lowest() : static_cast<float>(depth);
    for (int64_t i = 0; i < logits_.size; ++i) {
      const float logit = logits_.data[i];
      if (logit < floor || logit >= above_) continue;
      const uint64_t weight = weights_.of(logit, kExp2Table.data());
      if (weight != 0) found_.push_back({logit, static_cast<int32_t>(i), weight});
    }
    above_ = last ? kBottom : floor;
    depth_ *= 2;
  }

  void sort_more() {
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    };
    const size_t end = std::min(found_.size(), sorted_ + std::max(sorted_, kFirstRun));
    const auto first = found_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto last = found_.begin() + static_cast<std::ptrdiff_t>(end);
    if (last != found_.end()) std::nth_element(first, last, found_.end(), before);
    std::sort(first, last, before);
    sorted_ = end;
  }

  const Logits& logits_;
  const Weights& weights_;
  double temperature_;
  std::vector<Candidate> found_;  // the first sorted_ are in final order
  size_t sorted_ = 0;
  float above_ = std::numeric_limits<float>::infinity();  // all logits at or above it are found
  double depth_ = kFirstBand;
};

// The fewest candidates, at most `limit`, whose masses reach `needed`; all of them if none do.
struct Prefix {
  size_t count = 0;
  uint64_t mass = 0;
};
Prefix prefix(Descending& candidates, size_t limit, uint64_t needed) {
  Prefix result;
  while (result.count < limit && result.mass < needed) {
    const Candidate* candidate = candidates.at(result.count);
    if (candidate == nullptr) break;
    result.mass += candidate->weight;
    ++result.count;
  }
  return result;
}

void check(const SamplingParams& p) {
  const auto finite = [](float x) { return std::isfinite(x); };
  DSV4_CHECK(p.temperature >= 0 && finite(p.temperature), "temperature={}", p.temperature);
  DSV4_CHECK(p.top_p > 0 && p.top_p <= 1, "top_p={}", p.top_p);
  DSV4_CHECK(p.top_k >= 0, "top_k={}", p.top_k);
  DSV4_CHECK(p.min_p >= 0 && p.min_p <= 1, "min_p={}", p.min_p);
  DSV4_CHECK(p.repetition_penalty > 0 && finite(p.repetition_penalty), "repetition_penalty={}",
             p.repetition_penalty);
  DSV4_CHECK(finite(p.frequency_penalty), "frequency_penalty={}", p.frequency_penalty);
  DSV4_CHECK(finite(p.presence_penalty), "presence_penalty={}", p.presence_penalty);
  DSV4_CHECK(p.top_logprobs >= 0, "top_logprobs={}", p.top_logprobs);
}

// The tokens up to `last` in descending order; without cuts, all.
struct Kept {
  uint64_t mass;
  std::optional<Candidate> last;

  bool has(float logit, int64_t id) const {
    return !last || logit > last->logit || (logit == last->logit && id <= last->id);
  }
};

// all: mass of all candidates
Kept cut(const Logits& logits, const Weights& weights, const SamplingParams& params, uint64_t all) {
  constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  Descending candidates(logits, weights, static_cast<double>(params.temperature));
  Kept kept{.mass = all};
  const auto take = [&](const Prefix& found) {
    kept = {.mass = found.mass, .last = *candidates.at(found.count - 1)};
  };
  if (params.top_k > 0 && params.top_k < logits.size)
    take(prefix(candidates, static_cast<size_t>(params.top_k), kNever));
  if (params.top_p < 1) take(prefix(candidates, kAll, mass_to_keep(params.top_p, kept.mass)));
  return kept;
}

// mass: of all candidates
int32_t draw(const Logits& logits, const SamplingParams& params, uint64_t step, int bits,
             uint64_t* mass) {
  const Weights weights = weights_of(logits.largest, params.temperature, params.min_p, bits);
  *mass = mass_of(logits, weights);
  const Kept kept = cut(logits, weights, params, *mass);
  const uint64_t position = position_of(random_bits(params.seed, step) >> 11, kept.mass);
  uint64_t through = 0;
  for (int64_t id = 0; id < logits.size; ++id) {
    if (!kept.has(logits.data[id], id)) continue;
    through += weights.of(logits.data[id], kExp2Table.data());
    if (through > position) return static_cast<int32_t>(id);
  }
  fail(ErrorCode::kInvalidArgument, "a draw at {} of {}", position, through);
}

int32_t largest_id(const Logits& logits) {
  const float* end = logits.data + logits.size;
  return static_cast<int32_t>(std::find(logits.data, end, logits.largest) - logits.data);
}

Logits checked(const float* data, int64_t size, int64_t row, const char* which) {
  const float largest = dsv4::cpu::max_value(data, size);
  if (!std::isfinite(largest)) {
    fail(ErrorCode::kInvalidArgument, "{} of row {}: the largest of {} is {}", which, row, size,
         largest);
  }
  return {data, size, largest};
}

// The row as its terms and its mask change it; empty: they change nothing.
std::vector<float> adjusted_row(const SampleArgs& args, int64_t row) {
  const int64_t v = args.logits.dim(1);
  const auto r = static_cast<size_t>(row);
  const std::span<const TokenTerm> terms =
      args.term_begin.empty()
          ? std::span<const TokenTerm>()
          : args.terms.subspan(static_cast<size_t>(args.term_begin[r]),
                               static_cast<size_t>(args.term_begin[r + 1] - args.term_begin[r]));
  if (terms.empty() && args.mask.empty()) return {};
  const float* logits = args.logits.row<float>(row);
  std::vector<float> values(logits, logits + v);
  int64_t last = -1;
  for (const TokenTerm& term : terms) {
    DSV4_CHECK(term.id > last && term.id < v, "term of id {} after {} of {}", term.id, last, v);
    last = term.id;
    float& value = values[static_cast<size_t>(term.id)];
    value = adjusted(value, term, args.params[r]);
  }
  if (args.mask.empty()) return values;
  const auto* mask = args.mask.row<uint32_t>(row);
  for (int64_t i = 0; i < v; ++i)
    if ((mask[i / 32] >> i % 32 & 1) == 0) values[static_cast<size_t>(i)] = -INFINITY;
  return values;
}

void list_top(const SampleArgs& args, int64_t row, const Logits& logits, double ln_mass) {
  const int64_t room = args.top_ids.dim(1);
  const int64_t wanted =
      std::min<int64_t>(args.params[static_cast<size_t>(row)].top_logprobs, room);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < logits.size && wanted > 0; ++i)
    if (logits.data[i] > -INFINITY) order.push_back(static_cast<int32_t>(i));
  const auto listed = std::min(order.size(), static_cast<size_t>(wanted));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(listed), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits.data[a], y = logits.data[b];
                      return x > y || (x == y && a < b);
                    });
  auto* ids = args.top_ids.row<int32_t>(row);
  auto* logprobs = args.top_logprobs.row<float>(row);
  for (size_t i = 0; i < static_cast<size_t>(room); ++i) {
    ids[i] = i < listed ? order[i] : -1;
    logprobs[i] =
        i < listed ? logprob_of(logits.data[order[i]], logits.largest, ln_mass) : -INFINITY;
  }
}

void sample_row(const SampleArgs& args, int64_t row, const Logits& raw, const Logits& changed) {
  const SamplingParams& params = args.params[static_cast<size_t>(row)];
  const int bits = mass_bits(raw.size);
  int32_t id = 0;
  uint64_t mass = 0;
  if (params.temperature > 0) {
    id = draw(changed, params, args.steps[static_cast<size_t>(row)], bits, &mass);
  } else {
    id = largest_id(changed);
  }
  if (params.temperature != 1 || params.min_p > 0 || changed.data != raw.data)
    mass = mass_of(raw, weights_of(raw.largest, 1, 0, bits));
  const double ln_mass = ln_of_mass(mass, bits);
  args.ids.as<int32_t>()[row] = id;
  args.logprobs.as<float>()[row] = logprob_of(raw.data[id], raw.largest, ln_mass);
  if (!args.top_ids.empty()) list_top(args, row, raw, ln_mass);
}

}  // namespace

// The candidates of a row; a vector that grows holds up to three times its contents while it moves.
// Rows that terms or masks change are copied first.
HostBytes host_bytes(const SampleArgs& args) {
  const bool changed = !args.term_begin.empty() || !args.mask.empty();
  return {.shared = changed ? args.logits.numel() * static_cast<int64_t>(sizeof(float)) : 0,
          .per_thread = 3 * args.logits.dim(1) * static_cast<int64_t>(sizeof(Candidate))};
}

void run(const Context&, const SampleArgs& args) {
  const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  for (const SamplingParams& params : args.params) check(params);
  std::vector<Logits> raw, changed;
  std::vector<std::vector<float>> adjusted;
  for (int64_t r = 0; r < rows; ++r) {
    raw.push_back(checked(args.logits.row<float>(r), vocabulary, r, "logits"));
    adjusted.push_back(adjusted_row(args, r));
    changed.push_back(adjusted.back().empty() ? raw.back()
                                              : checked(adjusted.back().data(), vocabulary, r,
                                                        "logits with terms and mask"));
  }
#pragma omp parallel for if (rows > 1 && dsv4::cpu::worth_sharing(10 * rows * vocabulary))
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    sample_row(args, r, raw[i], changed[i]);
  }
}

}  // namespace dsv4::sample_kernel::cpu

namespace dsv4 {

void drawn_logprobs(const SampleArgs& args, int64_t row) {
  using namespace sample_kernel;       // NOLINT: the file's own
  using namespace sample_kernel::cpu;  // NOLINT
  const int64_t v = args.logits.dim(1);
  SamplingParams params = args.params[static_cast<size_t>(row)];
  check(params);
  if (params.temperature == 0) params = {};
  std::vector<float> values = adjusted_row(args, row);
  if (values.empty()) values.assign(args.logits.row<float>(row), args.logits.row<float>(row) + v);
  const Logits changed = checked(values.data(), v, row, "logits with terms and mask");
  const Weights weights =
      weights_of(changed.largest, params.temperature, params.min_p, mass_bits(v));
  const Kept kept = cut(changed, weights, params, mass_of(changed, weights));
  double sum = 0;
  for (int64_t id = 0; id < v; ++id) {
    float& l = values[static_cast<size_t>(id)];
    const bool drawn = kept.has(l, id) && weights.of(l, kExp2Table.data()) > 0;
    l = drawn ? (l - changed.largest) / params.temperature : -INFINITY;
    sum += std::exp(static_cast<double>(l));
  }
  const Logits drawn{values.data(), v, 0};
  const int32_t id = args.ids.as<int32_t>()[row];
  args.logprobs.as<float>()[row] = logprob_of(values[static_cast<size_t>(id)], 0, std::log(sum));
  if (!args.top_ids.empty()) list_top(args, row, drawn, std::log(sum));
}

}  // namespace dsv4
