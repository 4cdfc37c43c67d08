// A draw rarely needs more than the likeliest hundred tokens, so the vocabulary is never sorted as
// a whole: candidates are found band by band (by their distance from the largest logit), and only
// as many of a band are sorted as are needed.

#include "dsv4/ops/sample/sample_impls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/reduce.h"

namespace dsv4 {
namespace {

struct Logits {
  const float* data;
  int64_t size;
  float largest;  // finite
};

struct Candidate {
  float logit;
  int32_t id;
  double weight;  // exp((logit - largest) / temperature)
};

// The candidates in order: larger logit first, ties to the lowest id, -inf left out.
class Descending {
 public:
  Descending(const Logits& logits, double temperature)
      : logits_(logits), temperature_(temperature) {}

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
  static constexpr size_t kFirstRun =
      64;  // candidates sorted at first; each run doubles their count

  // Adds the logits in [floor, above_), all below those found before.
  void find_next_band() {
    const double depth = static_cast<double>(logits_.largest) - depth_ * temperature_;
    // Below exp's underflow, and below the range of floats, the rest is one band.
    const bool last = depth_ > 800 || !(depth > std::numeric_limits<float>::lowest());
    const float floor = last ? std::numeric_limits<float>::lowest() : static_cast<float>(depth);
    for (int64_t i = 0; i < logits_.size; ++i) {
      const float logit = logits_.data[i];
      if (logit >= floor && logit < above_) found_.push_back({logit, static_cast<int32_t>(i), 0});
    }
    above_ = last ? kBottom : floor;
    depth_ *= 2;
  }

  // Sorts the next run of found candidates and computes their weights.
  void sort_more() {
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    };
    const size_t end = std::min(found_.size(), sorted_ + std::max(sorted_, kFirstRun));
    const auto first = found_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto last = found_.begin() + static_cast<std::ptrdiff_t>(end);
    if (last != found_.end()) std::nth_element(first, last, found_.end(), before);
    std::sort(first, last, before);
    for (size_t i = sorted_; i < end; ++i) found_[i].weight = weight(found_[i].logit);
    sorted_ = end;
  }

  double weight(float logit) const {
    return std::exp((static_cast<double>(logit) - static_cast<double>(logits_.largest)) /
                    temperature_);
  }

  const Logits& logits_;
  double temperature_;
  std::vector<Candidate> found_;  // the first sorted_ are in final order
  size_t sorted_ = 0;
  float above_ = std::numeric_limits<float>::infinity();  // all logits at or above it are found
  double depth_ = kFirstBand;
};

// The least number of candidates, at most `limit`, whose weights sum past `target`, or reach it if
// `reached_is_enough`; all of them if none do. `mass` gets their sum.
size_t prefix(Descending& candidates, size_t limit, double target, bool reached_is_enough,
              double* mass) {
  *mass = 0;
  size_t n = 0;
  while (n < limit) {
    const Candidate* candidate = candidates.at(n);
    if (candidate == nullptr) break;
    *mass += candidate->weight;
    ++n;
    if (*mass > target || (reached_is_enough && *mass == target)) break;
  }
  return n;
}

void check(const SamplingParams& p) {
  DSV4_CHECK(p.temperature >= 0 && std::isfinite(p.temperature), "temperature={}", p.temperature);
  DSV4_CHECK(p.top_p > 0 && p.top_p <= 1, "top_p={}", p.top_p);
  DSV4_CHECK(p.top_k >= 0, "top_k={}", p.top_k);
}

int32_t draw(const Logits& logits, const SamplingParams& params, uint64_t step) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto temperature = static_cast<double>(params.temperature);
  const auto top_p = static_cast<double>(params.top_p);
  Descending candidates(logits, temperature);

  const bool cut = params.top_k > 0 && params.top_k < logits.size;
  auto kept = static_cast<size_t>(cut ? params.top_k : logits.size);
  double mass =
      cpu::sum_exp(logits.data, logits.size, static_cast<double>(logits.largest), 1 / temperature);
  if (cut) kept = prefix(candidates, kept, kNever, false, &mass);
  if (top_p < 1) kept = prefix(candidates, kept, top_p * mass, true, &mass);

  const double target = random_uniform(params.seed, step) * mass;
  const size_t n = prefix(candidates, kept, target, false, &mass);
  return candidates.at(n - 1)->id;
}

float logprob(const Logits& logits, int32_t id) {
  const auto largest = static_cast<double>(logits.largest);
  const double sum = cpu::sum_exp(logits.data, logits.size, largest, 1);
  return static_cast<float>(static_cast<double>(logits.data[id]) - largest - std::log(sum));
}

int32_t largest_id(const Logits& logits) {
  const float* end = logits.data + logits.size;
  return static_cast<int32_t>(std::find(logits.data, end, logits.largest) - logits.data);
}

}  // namespace

// The candidates of a row; a vector that grows holds up to three times its contents while it moves.
HostBytes sample_cpu_bytes(const SampleArgs& args) {
  return {.per_thread = 3 * args.logits.dim(1) * static_cast<int64_t>(sizeof(Candidate))};
}

void sample_cpu(const Context&, const SampleArgs& args) {
  const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  for (const SamplingParams& params : args.params) check(params);
  std::vector<float> largest(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const float value = cpu::max_value(args.logits.row<float>(r), vocabulary);
    if (!std::isfinite(value)) {
      fail(ErrorCode::kInvalidArgument, "logits of row {}: the largest of {} is {}", r, vocabulary,
           value);
    }
    largest[static_cast<size_t>(r)] = value;
  }
#pragma omp parallel for if (rows > 1 && cpu::worth_sharing(10 * rows * vocabulary))
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const Logits logits{args.logits.row<float>(r), vocabulary, largest[i]};
    const SamplingParams& params = args.params[i];
    const int32_t id =
        params.temperature > 0 ? draw(logits, params, args.steps[i]) : largest_id(logits);
    args.ids.as<int32_t>()[r] = id;
    args.logprobs.as<float>()[r] = logprob(logits, id);
  }
}

}  // namespace dsv4
