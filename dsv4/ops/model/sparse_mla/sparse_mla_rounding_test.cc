// What the type of P and the maximum that it is relative to do to the output, against fp64:
//
//   P_j = exp(z_j - m), rounded for the product with v_j; the sums of P_j and of P_j v_j are f32
//
// The official kernel (docs/spec/dsv4.md 4.4) rounds P to bf16 against the running maximum of tiles
// of 64 keys. A rule below has the roundings of an implementation, written out; all rules get the
// same logits, so that they differ by nothing else. The test prints a table for docs/numerics.md,
// with rows of the implementations that run here, and holds each to the bound of its type.
// Not in it: tensor cores add 16 products with fewer bits than here, in any of the kernels.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "dsv4/ops/oracle.h"
#include "tests/harness/gpu.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;
using Keys = std::vector<std::vector<float>>;

constexpr double kLog2E = 1.4426950408889634;
constexpr size_t kStep = 16;  // keys whose products a tensor core adds before it rounds to f32

enum class Type { kF32, kBF16, kF16 };

struct Rule {
  const char* name;
  Type p;
  size_t tile;      // keys between two updates of m; 0: m is the maximum of the whole row
  double headroom;  // m is updated when a logit exceeds it by more, in powers of two
};

constexpr Rule kExact{"P in f32, maximum of the row", Type::kF32, 0, 0};
constexpr Rule kOfficialCode{"bf16, running maximum of 64 keys", Type::kBF16, 64, 0};
constexpr Rule kWholeRow{"bf16, maximum of the row", Type::kBF16, 0, 0};
constexpr Rule kHalf{"f16, running maximum with headroom", Type::kF16, 64, 8};

// The rule that an implementation has.
const Rule& rule_of(std::string_view impl) {
  if (impl.starts_with("sm90_fp8")) return kHalf;
  return impl == "cuda_mma" || impl == "sm90_bf16" ? kOfficialCode : kWholeRow;
}

float rounded(Type type, float p) {
  if (type == Type::kBF16) return round_to_bf16(p);
  return type == Type::kF16 ? f16_to_f32(f32_to_f16(p)) : p;
}

struct Row {
  const Keys& keys;
  const Vector& z;  // logits
  double sink;
};

// The maximum that the keys of a tile are relative to, `before` the one until then.
double next_maximum(const Rule& rule, const Row& row, size_t begin, size_t end, double before) {
  double top = -std::numeric_limits<double>::infinity();
  for (size_t j = begin; j < end; ++j) top = std::max(top, row.z[j]);
  return (top - before) * kLog2E > rule.headroom ? top : before;
}

// The output before its store, in f32.
Vector attend(const Rule& rule, const Row& row) {
  const size_t n = row.keys.size(), d = row.keys[0].size(), tile = rule.tile == 0 ? n : rule.tile;
  std::vector<float> out(d);
  float sum = 0;
  double m = -std::numeric_limits<double>::infinity();
  for (size_t begin = 0; begin < n; begin += tile) {
    const size_t end = std::min(n, begin + tile);
    const double now = next_maximum(rule, row, begin, end, m);
    const auto factor = static_cast<float>(std::exp(m - now));
    m = now;
    sum *= factor;
    for (float& v : out) v *= factor;
    for (size_t first = begin; first < end; first += kStep) {
      const size_t last = std::min(end, first + kStep);
      Vector products(out.begin(), out.end());
      float of_step = 0;
      for (size_t j = first; j < last; ++j) {
        const auto e = static_cast<float>(std::exp(row.z[j] - m));
        of_step += e;
        const auto p = static_cast<double>(rounded(rule.p, e));
        for (size_t c = 0; c < d; ++c) products[c] += p * static_cast<double>(row.keys[j][c]);
      }
      out.assign(products.begin(), products.end());
      sum += of_step;
    }
  }
  sum += static_cast<float>(std::exp(row.sink - m));
  Vector values;
  for (const float v : out) values.push_back(static_cast<double>(v / sum));
  return values;
}

// The formula in fp64, without a rounding.
Vector exact(const Row& row) {
  const double m = *std::max_element(row.z.begin(), row.z.end());
  double sum = std::exp(row.sink - m);
  Vector out(row.keys[0].size());
  for (size_t j = 0; j < row.keys.size(); ++j) {
    const double p = std::exp(row.z[j] - m);
    sum += p;
    for (size_t c = 0; c < out.size(); ++c) out[c] += p * static_cast<double>(row.keys[j][c]);
  }
  for (double& v : out) v /= sum;
  return out;
}

// Distances of outputs from fp64, over all heads and queries.
struct Errors {
  double square = 0, norm = 0;   // of the f32 output
  double ulps = 0;               // the largest of a stored value, in last places of a typical one
  int64_t other = 0, count = 0;  // stored values that are not the nearest to fp64

  double relative() const { return std::sqrt(square / norm); }  // rms, before the store
  double share() const { return static_cast<double>(other) / static_cast<double>(count); }

  void add(const Vector& got, const Vector& want) {
    double of_row = 0;
    for (const double v : want) of_row += v * v;
    const double typical = std::sqrt(of_row / static_cast<double>(want.size()));
    norm += of_row;
    for (size_t c = 0; c < want.size(); ++c) {
      square += (got[c] - want[c]) * (got[c] - want[c]);
      const double stored = oracle::bf16(got[c]);
      const double place = test::ulp(DType::kBF16, std::max(std::abs(want[c]), typical));
      ulps = std::max(ulps, std::abs(stored - want[c]) / place);
      other += stored != oracle::bf16(want[c]) ? 1 : 0;
    }
    count += static_cast<int64_t>(want.size());
  }
};

void print(const std::string& name, const Errors& errors) {
  std::printf("  %-36s relative %.1e, other bf16 %5.2f %%, at most %.2f ulps\n", name.c_str(),
              errors.relative(), 100 * errors.share(), errors.ulps);
}

struct Case {
  const char* name;
  int64_t compressed;
  double sigma;  // of the logits
};

constexpr int64_t kQueries = 2, kHeads = 8,
                  kFirstHead = 2;  // the first two have sinks of -inf and inf

class SparseMlaRounding : public testing::TestWithParam<Case> {
 protected:
  SparseMlaRounding() {
    const Case& one = GetParam();
    test::Outputs whole;
    args_ = test::make_args(arena_, rng_,
                            {.t = kQueries,
                             .h = kHeads,
                             .window = 128,
                             .compressed = one.compressed,
                             .dtype = DType::kBF16,
                             .invalid = 0,
                             .f32_out = true},
                            whole);
    args_.scale *= static_cast<float>(one.sigma / 2);  // q has a sigma of 2, keys of 1
    for (int64_t query = 0; query < kQueries; ++query) add_rows(query);
  }

  void add_rows(int64_t query) {
    Keys keys;
    for (const KvList* list : {&args_.window, &args_.compressed}) {
      for (int64_t j = 0; j < list->topk(); ++j) {
        keys.emplace_back(static_cast<size_t>(list->pool.layout.width()));
        load_row(list->pool, list->indices.as<int32_t>()[query * list->indices.stride[0] + j],
                 keys.back().data());
      }
    }
    for (int64_t head = kFirstHead; head < kHeads; ++head) {
      Vector z;
      for (const std::vector<float>& key : keys) {
        double dot = 0;
        for (size_t c = 0; c < key.size(); ++c) {
          dot += oracle::value(args_.q, query * args_.q.stride[0] + head * args_.q.stride[2] +
                                            static_cast<int64_t>(c)) *
                 static_cast<double>(key[c]);
        }
        z.push_back(dot * static_cast<double>(args_.scale));
      }
      const Row row{keys, z, oracle::value(args_.sink, head)};
      want_.push_back(exact(row));
      for (auto& [rule, errors] : of_rules_) errors.add(attend(rule, row), want_.back());
    }
  }

  double error_of(const Rule& rule) const {
    return std::find_if(std::begin(of_rules_), std::end(of_rules_),
                        [&](const OfRule& one) { return &one.rule == &rule; })
        ->errors.relative();
  }

  // The largest error of an implementation. Logits in f32 are off by up to 4e-5
  // (sparse_mla_case.h), and that is an error of P. sm90_fp8 rounds partials of splits to f16:
  // their errors are spread evenly up to half a last place, which is at most 2^-11, so 2^-11 /
  // sqrt(3) in the mean of squares, and adds to that of P. Where it has one split, sums of
  // thousands of keys in the tensor core are as far off.
  double bound(std::string_view impl) const {
    const double of_p = error_of(rule_of(impl));
    return impl.starts_with("sm90_fp8") ? std::hypot(of_p, 0x1p-11 / std::sqrt(3.0)) : of_p + 1e-4;
  }

  // An implementation's, on the machine that this is.
  Errors run(const Impl<SparseMlaArgs>& impl, const Context& context) {
    impl.run(context, args_);
    if (context.device != nullptr) test::wait(*context.device);
    Errors errors;
    for (int64_t i = 0, seen = 0; i < kQueries * kHeads; ++i) {
      if (i % kHeads < kFirstHead) continue;
      const float* out = args_.out.as<float>() + i * args_.out.dim(3);
      errors.add(Vector(out, out + args_.out.dim(3)), want_[static_cast<size_t>(seen++)]);
    }
    return errors;
  }

  test::Arena arena_;
  uint64_t seed_ = std::random_device{}();
  Rng rng_{seed_};
  SparseMlaArgs args_;
  std::vector<Vector> want_;  // of each query and head
  struct OfRule {
    const Rule& rule;
    Errors errors{};
  };
  OfRule of_rules_[4] = {{kExact}, {kOfficialCode}, {kWholeRow}, {kHalf}};
};

TEST_P(SparseMlaRounding, OfP) {
  std::printf("%s, seed %llu\n", GetParam().name, static_cast<unsigned long long>(seed_));
  for (const auto& [rule, errors] : of_rules_) print(rule.name, errors);
  EXPECT_LT(error_of(kExact), 1e-5);  // sums in f32 alone
  // P is off by half a last place at most; outputs are smaller than the sums of their terms' sizes.
  EXPECT_LT(error_of(kOfficialCode), 0x1p-8);
  EXPECT_LT(error_of(kWholeRow), 0x1p-8);
  EXPECT_LT(error_of(kHalf), 0x1p-11);
  // f16 has three bits more. Where few keys have most of the weight that is less: their P is 1 with
  // an exact maximum, which no rounding changes, and another number with headroom.
  EXPECT_LT(error_of(kHalf), GetParam().sigma > 1 ? 0x1p-11 : error_of(kOfficialCode) / 4);
  for (const Impl<SparseMlaArgs>& impl : sparse_mla.impls) {
    const Context context{.device = impl.arch == Arch::kCpu ? nullptr : test::gpu()};
    if (!reaches(impl.arch, context) || impl.reject(context, args_) != nullptr) continue;
    const Errors errors = run(impl, context);
    print(std::string(impl.name) + ", as it ran", errors);
    EXPECT_LT(errors.relative(), bound(impl.name)) << impl.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Lists, SparseMlaRounding,
                         testing::Values(Case{"window", 0, 1}, Case{"window, peaked", 0, 6},
                                         Case{"CSA of V4-Flash", 512, 1},
                                         Case{"CSA of V4-Flash, peaked", 512, 6},
                                         Case{"HCA at 256K tokens", 2048, 1},
                                         Case{"HCA at 256K tokens, peaked", 2048, 6}));

}  // namespace
}  // namespace dsv4
