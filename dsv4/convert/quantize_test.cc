// End to end: a checkpoint folder in, a converted one out.

#include "dsv4/convert/quantize.h"

#include <gtest/gtest.h>

#include <omp.h>

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/loader/checkpoint.h"
#include "dsv4/model/config.h"
#include "tests/harness/checkpoint_folder.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::folder_bytes;
using test::says;
using test::TempFolder;
using test::TestSource;

void nothing(const QuantizeProgress&) {
}

QuantizeResult convert(const std::string& source, const std::string& out, const std::string& recipe,
                       int64_t shard_bytes = int64_t{1} << 30) {
  return quantize({.source = source,
                   .out = out,
                   .recipe = parse_recipe(recipe, "r"),
                   .shard_bytes = shard_bytes},
                  nothing);
}

const LedgerWeight& entry(const Ledger& ledger, const std::string& name) {
  for (const LedgerWeight& weight : ledger.weights) {
    if (weight.name == name) return weight;
  }
  ADD_FAILURE() << "no " << name;
  return ledger.weights.front();
}

// One weight in each stored format, under names that recipes recognize.
struct Stored {
  const char* name;
  WeightFormat format;
  DType fp8_scale;
};
constexpr Stored kStored[] = {
    {"layers.0.attn.wq_a", WeightFormat::kF32, DType::kE8M0},
    {"layers.0.attn.wq_b", WeightFormat::kBF16, DType::kE8M0},
    {"layers.0.attn.wkv", WeightFormat::kF16, DType::kE8M0},
    {"layers.0.attn.wo_b", WeightFormat::kFp8Block, DType::kE8M0},
    {"layers.1.attn.wo_b", WeightFormat::kFp8Block, DType::kF32},
    {"layers.0.ffn.experts.0.w1", WeightFormat::kMxfp4, DType::kE8M0},
    {"layers.0.ffn.experts.1.w1", WeightFormat::kNvfp4, DType::kE8M0},
};
constexpr int64_t kRows = 260, kColumns = 160;  // three rows of fp8 blocks, the last ones ragged

std::string write_every_format(const TempFolder& folder) {
  TestSource source;
  for (const Stored& stored : kStored)
    source.weight(stored.name, stored.format, kRows, kColumns, stored.fp8_scale);
  source.weight("embed", WeightFormat::kBF16, 10, 64);
  source.scalar("hc_head_scale", 2.f);
  return source.write(folder);
}

double sqnr_db(const WeightView& x, const WeightView& y) {
  double signal = 0, noise = 0;
  for (int64_t row = 0; row < x.n; ++row) {
    for (int64_t i = 0; i < x.k; ++i) {
      const double value = weight_value(x, row, i), off = weight_value(y, row, i) - value;
      signal += value * value;
      noise += off * off;
    }
  }
  return 10 * std::log10(signal / noise);
}

class Quantize : public testing::Test {
 protected:
  std::string out(const std::string& name = "out") const { return folder_.file(name); }
  std::string bad(const std::string& source, const std::string& recipe) const {
    return error_of(ErrorCode::kBadInput, [&] { convert(source, out(), recipe); });
  }

  TempFolder folder_;
};

// The gain turns a relative noise of D into D / (1 - D): 0.5 dB at K = 2, 0.1 at K = 3.
double with_gain(double sqnr_db) {
  const double share = std::pow(10, -sqnr_db / 10);
  return -10 * std::log10(share / (1 - share));
}

TEST_F(Quantize, EveryStoredFormatToEveryTarget) {
  const std::string source = write_every_format(folder_);
  const Checkpoint before = Checkpoint::open(source);
  struct Case {
    const char* format;
    WeightFormat stored;
    double least_db;  // for Gaussian weights
  };
  // docs/spec/lowbit.md 7.1: 9.8, 15.9, 22.2 and 28.4 dB; 42000 weights give 0.1 dB of precision.
  // MXFP4 and NVFP4 with plain scales have 18.9 and 20.4 dB there.
  // fp8 rounds to 4 significant bits (31 dB), bf16 to 8 (55 dB).
  const Case cases[] = {
      {"k2", WeightFormat::kKbit, 9.5},      {"k3", WeightFormat::kKbit, 15.5},
      {"k4-bnf", WeightFormat::kKbit, 21.8}, {"k5-bnf", WeightFormat::kKbit, 27.9},
      {"mxfp4", WeightFormat::kMxfp4, 18.8}, {"nvfp4", WeightFormat::kNvfp4, 20.3},
      {"fp8", WeightFormat::kFp8Block, 30},  {"bf16", WeightFormat::kBF16, 50}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.format);
    const std::string recipe = fmt::format("experts {}\nattn {}\n", c.format, c.format);
    const QuantizeResult result = convert(source, out(c.format), recipe);
    const Checkpoint after = Checkpoint::open(out(c.format));
    for (const Stored& stored : kStored) {
      SCOPED_TRACE(stored.name);
      const WeightView x = before.weight(stored.name, kRows, kColumns);
      const WeightView y = after.weight(stored.name, kRows, kColumns);
      EXPECT_EQ(y.format, c.stored);
      const LedgerWeight& recorded = entry(result.ledger, stored.name);
      EXPECT_EQ(recorded.elements, kRows * kColumns);
      if (!recorded.sqnr_db) {  // kept, or lossless
        EXPECT_EQ(sqnr_db(x, y), INFINITY);
        continue;
      }
      // Random bits as FP8 or F16 are spread over octaves, far from the codebook's Gaussian.
      const bool gaussian =
          stored.format == WeightFormat::kF32 || stored.format == WeightFormat::kBF16;
      EXPECT_GT(*recorded.sqnr_db, with_gain(gaussian ? c.least_db : c.least_db / 2.5));
      // The ledger compares in f32, weight_value() in f64.
      EXPECT_NEAR(*recorded.sqnr_db, sqnr_db(x, y), 0.01);
    }
    EXPECT_TRUE(result.ledger.exceptions.empty());
    EXPECT_EQ(to_text(*read_ledger(out(c.format))), to_text(result.ledger));
  }
}

TEST_F(Quantize, Mxfp4ImportIsExactAndMisfitsAreKept) {
  TestSource source;
  source.weight("layers.0.ffn.experts.0.w1", WeightFormat::kMxfp4, 40, 96);
  source.weight("layers.0.ffn.experts.0.w2", WeightFormat::kMxfp4, 3, 64);
  source.weight("layers.0.ffn.experts.0.w3", WeightFormat::kMxfp4, 3, 64);
  // Scales spread over 20 octaves, and a NaN.
  const auto change = [&](std::initializer_list<uint8_t> scales) {
    const TensorView bytes = source.buffer(DType::kE8M0, {3, 2});
    std::fill_n(bytes.as<uint8_t>(), 6, uint8_t{120});
    std::copy(scales.begin(), scales.end(), bytes.as<uint8_t>());
    return bytes;
  };
  const std::string model = source.write(folder_);
  std::vector<std::pair<std::string, ConstTensorView>> tensors;
  const SafetensorsFile file(model + "/model.safetensors");
  for (auto [name, view] : file.tensors()) {
    if (name == "layers.0.ffn.experts.0.w2.scale") view = change({110, 130});
    if (name == "layers.0.ffn.experts.0.w3.scale") view = change({255});
    tensors.emplace_back(name, view);
  }
  write_safetensors(folder_.file("changed"), tensors);
  std::filesystem::rename(folder_.file("changed"), model + "/model.safetensors");

  const QuantizeResult result = convert(model, out(), "experts k4");
  const Checkpoint before = Checkpoint::open(model), after = Checkpoint::open(out());
  const WeightView x = before.weight("layers.0.ffn.experts.0.w1", 40, 96);
  const WeightView y = after.weight("layers.0.ffn.experts.0.w1", 40, 96);
  ASSERT_EQ(y.format, WeightFormat::kKbit);
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t i = 0; i < 96; ++i) {
      const double a = weight_value(x, row, i), b = weight_value(y, row, i);
      ASSERT_EQ(a, b);
      ASSERT_EQ(std::signbit(a), std::signbit(b));
    }
  }
  EXPECT_EQ(entry(result.ledger, "layers.0.ffn.experts.0.w1").format, "k4-e2m1");
  EXPECT_FALSE(entry(result.ledger, "layers.0.ffn.experts.0.w1").sqnr_db.has_value());
  EXPECT_EQ(entry(result.ledger, "layers.0.ffn.experts.0.w2").format, "mxfp4");
  ASSERT_EQ(result.ledger.exceptions.size(), 2u);
  EXPECT_TRUE(says(result.ledger.exceptions[0].why, "span more than the 18 octaves"));
  EXPECT_TRUE(says(result.ledger.exceptions[1].why, "NaN"));
  for (const char* name : {"w2", "w3"}) {
    const std::string prefix = fmt::format("layers.0.ffn.experts.0.{}", name);
    for (const char* part : {".weight", ".scale"}) {
      const ConstTensorView a = before.tensors().at(prefix + part).view;
      const ConstTensorView b = after.tensors().at(prefix + part).view;
      ASSERT_EQ(to_string(a), to_string(b));
      EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0);
    }
  }
}

// For engines that read compressed-tensors' names; the source may have either.
TEST_F(Quantize, Mxfp4OfMxfp4IsRenamed) {
  const std::string source = write_every_format(folder_), name = "layers.0.ffn.experts.0.w1";
  const QuantizeResult result = convert(source, out("a"), "experts.gate mxfp4");
  EXPECT_FALSE(entry(result.ledger, name).sqnr_db.has_value());
  convert(out("a"), out("b"), "experts.gate mxfp4");
  const SafetensorsFile before(source + "/model.safetensors");
  for (const char* folder : {"a", "b"}) {
    const SafetensorsFile after(out(folder) + "/model.safetensors");
    for (const auto& [old_name, new_name] :
         {std::pair{".weight", ".weight_packed"}, {".scale", ".weight_scale"}}) {
      const ConstTensorView x = before.tensors().at(name + old_name);
      const ConstTensorView y = after.tensors().at(name + new_name);
      ASSERT_EQ(x.bytes(), y.bytes());
      EXPECT_EQ(y.dtype, DType::kU8);
      EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())), 0) << folder;
    }
  }
}

TEST_F(Quantize, ResultDoesNotDependOnNaming) {
  convert("tests/golden/hf/mixed", out("a"), "experts k3\nattn k4");
  convert("tests/golden/hf/mixed_hf", out("b"), "experts k3\nattn k4");
  EXPECT_EQ(folder_bytes(out("a")).at("model.safetensors"),
            folder_bytes(out("b")).at("model.safetensors"));
}

// A model hub's cache is made of links, but a link may lead anywhere.
TEST_F(Quantize, FollowsLinksOfKnownFilesOnly) {
  const std::string source = write_every_format(folder_);
  std::filesystem::rename(source + "/tokenizer.json", folder_.file("blob"));
  std::filesystem::create_symlink(folder_.file("blob"), source + "/tokenizer.json");
  folder_.write("secret", "secret");
  std::filesystem::create_symlink(folder_.file("secret"), source + "/NOTES.txt");
  const QuantizeResult result = convert(source, out(), "experts k3");
  EXPECT_EQ(result.side_files, std::vector<std::string>{"tokenizer.json"});
  EXPECT_FALSE(std::filesystem::exists(out() + "/NOTES.txt"));
}

TEST_F(Quantize, WritesSideFiles) {
  const std::string source = write_every_format(folder_);
  const QuantizeResult result = convert(source, out(), "experts k3\nhead k2 # none\n");
  std::vector<std::string> files;
  for (const auto& [file, bytes] : folder_bytes(out())) files.push_back(file);
  EXPECT_EQ(files, (std::vector<std::string>{"config.json", "model.safetensors",
                                             "quantization_ledger.json", "tokenizer.json"}));
  EXPECT_EQ(result.side_files, std::vector<std::string>{"tokenizer.json"});
  EXPECT_FALSE(std::filesystem::exists(out() + ".partial"));
  const auto config = nlohmann::json::parse(read_text_file(out() + "/config.json"));
  EXPECT_EQ(config.at("quantization_config").at("quant_method"), "kbit");
  EXPECT_EQ(config.at("quantization_config").at("block_size"), 32);
  EXPECT_EQ(config.at("quantization_config").at("recipe"), "experts k3\nhead k2 # none\n");
  EXPECT_EQ(load_config(out() + "/config.json").num_layers,
            load_config(source + "/config.json").num_layers);
  EXPECT_EQ(result.unused_rules, std::vector<std::string>{"r:2"});
  EXPECT_EQ(SafetensorsFile(out() + "/model.safetensors").num_copied(), 0u) << "misaligned";
}

TEST_F(Quantize, ResultDoesNotDependOnSharding) {
  const std::string source = write_every_format(folder_);
  const std::string recipe = "experts k2\nattn k5";
  convert(source, out("one"), recipe);
  const QuantizeResult result = convert(source, out("many"), recipe, 50000);
  EXPECT_GT(result.shards, 3);
  const Checkpoint one = Checkpoint::open(out("one")), many = Checkpoint::open(out("many"));
  ASSERT_EQ(one.tensors().size(), many.tensors().size());
  for (const auto& [name, stored] : one.tensors()) {
    const ConstTensorView other = many.tensors().at(name).view;
    ASSERT_EQ(to_string(other), to_string(stored.view));
    EXPECT_EQ(std::memcmp(other.data, stored.view.data, static_cast<size_t>(other.bytes())), 0)
        << name;
  }
  // A converted checkpoint can be converted again.
  convert(out("many"), out("again"), "attn fp8");
  const Checkpoint again = Checkpoint::open(out("again"));
  EXPECT_EQ(again.weight("layers.0.attn.wkv", kRows, kColumns).format, WeightFormat::kFp8Block);
}

struct Stop {};

TEST_F(Quantize, ResumesAfterAnyInterrupt) {
  const std::string source = write_every_format(folder_);
  QuantizeOptions options{.source = source,
                          .out = out("whole"),
                          .recipe = parse_recipe("experts k2\nattn k4", "r"),
                          .shard_bytes = 30000};
  int calls = 0;
  quantize(options, [&](const QuantizeProgress&) { ++calls; });
  const auto want = folder_bytes(out("whole"));
  ASSERT_GT(calls, 10);
  int64_t resumed = 0;
  for (int stop = 1; stop <= calls; ++stop) {
    options.out = out(fmt::format("stopped{}", stop));
    int call = 0;
    EXPECT_THROW(quantize(options,
                          [&](const QuantizeProgress&) {
                            if (++call == stop) throw Stop();
                          }),
                 Stop);
    EXPECT_FALSE(std::filesystem::exists(options.out));
    // A killed process leaves temporary files, which a destructor would remove.
    write_file(options.out + ".partial/model/model-00001-of-00009.safetensors.1-2.tmp", "half");
    const QuantizeResult result = quantize(options, nothing);
    resumed += result.resumed_shards;
    EXPECT_EQ(folder_bytes(options.out), want) << "stopped at " << stop;
  }
  EXPECT_GT(resumed, calls / 2) << "finished shards were not reused";
}

TEST_F(Quantize, BytesDoNotDependOnThreads) {
  const std::string source = write_every_format(folder_);
  const int64_t threshold = cpu::sharing_threshold;
  convert(source, out("one"), "experts k3\nattn 0 k5\nattn 1 fp8");
  cpu::sharing_threshold = 0;
  omp_set_num_threads(3);
  convert(source, out("three"), "experts k3\nattn 0 k5\nattn 1 fp8");
  omp_set_num_threads(1);
  cpu::sharing_threshold = threshold;
  EXPECT_EQ(folder_bytes(out("one")), folder_bytes(out("three")));
}

// Several weights at a time, as with a GPU. The first takes longest, so others end before it.
TEST_F(Quantize, BytesDoNotDependOnWorkers) {
  TestSource weights;
  weights.weight("layers.0.attn.wkv", WeightFormat::kF32, 512, 4096);
  for (const Stored& stored : kStored) {
    if (std::string(stored.name) != "layers.0.attn.wkv")
      weights.weight(stored.name, stored.format, kRows, kColumns, stored.fp8_scale);
  }
  const std::string source = weights.write(folder_);
  const std::string recipe = "experts k4\nattn k3\nattn 1 fp8";
  convert(source, out("one"), recipe, int64_t{3} << 20);
  QuantizeOptions options{.source = source,
                          .out = out("many"),
                          .recipe = parse_recipe(recipe, "r"),
                          .shard_bytes = int64_t{3} << 20,
                          .workers = 4};
  quantize(options, nothing);
  EXPECT_EQ(folder_bytes(out("one")), folder_bytes(out("many")));
  options.out = out("stopped"), options.shard_bytes = 50000;
  EXPECT_THROW(quantize(options,
                        [](const QuantizeProgress& now) {
                          if (now.tensors > 12) throw Stop();
                        }),
               Stop);
  EXPECT_GT(quantize(options, nothing).resumed_shards, 0);
  convert(source, out("small"), recipe, 50000);
  EXPECT_EQ(folder_bytes(out("small")), folder_bytes(out("stopped")));
}

TEST_F(Quantize, RejectsADifferentJob) {
  const std::string source = write_every_format(folder_);
  const auto stop = [](const QuantizeProgress&) { throw Stop(); };
  QuantizeOptions options{.source = source, .out = out(), .recipe = parse_recipe("attn k3", "r")};
  EXPECT_THROW(quantize(options, stop), Stop);
  EXPECT_TRUE(says(bad(source, "attn k4"),
                   "was started with a different recipe: repeat the original command"));
  QuantizeOptions other = options;
  other.scales = ScaleChoice::kReference;
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, [&] { quantize(other, nothing); }),
                   "a different choice of scales"));
  TestSource(2).weight("layers.0.attn.wkv", WeightFormat::kF32, 4, 32).write(folder_, "other");
  options.source = folder_.file("other");
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, [&] { quantize(options, nothing); }),
                   "a different source"));
  other.restart = true;
  quantize(other, nothing);
  EXPECT_TRUE(says(bad(source, "attn k3"), "already exists"));
}

TEST_F(Quantize, LeavesAForeignFolderAlone) {
  const std::string source = write_every_format(folder_);
  std::filesystem::create_directories(out() + ".partial");
  write_file(out() + ".partial/thesis.txt", "x");
  EXPECT_TRUE(says(bad(source, "attn k3"), "is not an unfinished conversion"));
  EXPECT_EQ(read_text_file(out() + ".partial/thesis.txt"), "x");
}

TEST_F(Quantize, RejectsASecondProcess) {
  const std::string source = write_every_format(folder_);
  QuantizeOptions options{.source = source, .out = out(), .recipe = parse_recipe("attn k3", "r")};
  bool entered = false;
  quantize(options, [&](const QuantizeProgress&) {
    if (entered) return;
    entered = true;
    EXPECT_TRUE(says(bad(source, "attn k3"), "another process is writing"));
  });
  EXPECT_TRUE(entered);
}

TEST_F(Quantize, RewritesADamagedShard) {
  const std::string source = write_every_format(folder_);
  QuantizeOptions options{
      .source = source, .out = out(), .recipe = parse_recipe("attn k3", "r"), .shard_bytes = 30000};
  EXPECT_THROW(quantize(options,
                        [](const QuantizeProgress& now) {
                          if (now.tensors > 12) throw Stop();
                        }),
               Stop);
  std::string shard;
  for (const auto& [file, bytes] : folder_bytes(out() + ".partial/model")) shard = file;
  std::filesystem::resize_file(out() + ".partial/model/" + shard, 1000);
  quantize(options, nothing);
  options.out = out("fresh");
  quantize(options, nothing);
  EXPECT_EQ(folder_bytes(out()), folder_bytes(out("fresh")));
}

TEST_F(Quantize, SearchUsesTheImatrix) {
  const std::string source = write_every_format(folder_);
  Buffer values(DType::kF32, {kColumns}), short_one(DType::kF32, {kColumns - 1});
  for (int64_t i = 0; i < kColumns; ++i) values.as<float>()[i] = i % 8 == 0 ? 100.f : 1.f;
  const auto with = [&](const std::string& name, const ConstTensorView& vector) {
    write_safetensors(folder_.file("imatrix"), {{name, vector}, {"nonsense", values}});
    return quantize({.source = source,
                     .out = out(name),
                     .recipe = parse_recipe("attn k2", "r"),
                     .imatrix = folder_.file("imatrix")},
                    nothing);
  };
  const QuantizeResult result = with("layers.0.attn.wq_a", values);
  EXPECT_EQ(result.imatrix_used, 1);
  EXPECT_EQ(result.imatrix_missing, 4);
  EXPECT_EQ(result.imatrix_unknown, std::vector<std::string>{"nonsense"});
  convert(source, out("plain"), "attn k2");
  const Checkpoint before = Checkpoint::open(source), plain = Checkpoint::open(out("plain"));
  const Checkpoint weighted = Checkpoint::open(out("layers.0.attn.wq_a"));
  const WeightView x = before.weight("layers.0.attn.wq_a", kRows, kColumns);
  const auto loss = [&](const Checkpoint& checkpoint) {
    const WeightView y = checkpoint.weight("layers.0.attn.wq_a", kRows, kColumns);
    double sum = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kColumns; ++i)
        sum += static_cast<double>(values.as<float>()[i]) *
               std::pow(weight_value(y, row, i) - weight_value(x, row, i), 2);
    }
    return sum;
  };
  EXPECT_LT(loss(weighted), 0.8 * loss(plain));

  const auto wrong = [&](const ConstTensorView& vector) {
    return error_of(ErrorCode::kBadInput, [&] { with("layers.0.attn.wkv", vector); });
  };
  EXPECT_TRUE(says(wrong(short_one),
                   "layers.0.attn.wkv: want [160] F32, one value per column, "
                   "got [159] F32"));
  values.as<float>()[7] = -1;
  EXPECT_TRUE(says(wrong(values), "value 7 is -1"));
  values.as<float>()[7] = NAN;
  EXPECT_TRUE(says(wrong(values), "value 7 is nan"));
}

// Both would otherwise end as a success that used nothing of what was given.
TEST_F(Quantize, RejectsAnImatrixOrARecipeForAnotherModel) {
  const std::string source = write_every_format(folder_);
  const Buffer values(DType::kF32, {kColumns});
  write_safetensors(folder_.file("imatrix"), {{"layers.7.attn.nothing", values}});
  const auto with_imatrix = [&] {
    quantize({.source = source,
              .out = out(),
              .recipe = parse_recipe("attn k2", "r"),
              .imatrix = folder_.file("imatrix")},
             nothing);
  };
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, with_imatrix),
                   "none of its 1 entries is for one of the 5 weights whose scales are searched: "
                   "layers.7.attn.nothing is no weight of this checkpoint"));
  EXPECT_TRUE(says(bad(source, "attn 99 k2\nexperts 98 k3"),
                   "r:1: no rule of the recipe matches a weight of"));
  EXPECT_FALSE(std::filesystem::exists(out() + ".partial"));
}

TEST_F(Quantize, UserCodebooks) {
  const std::string source = write_every_format(folder_);
  const std::string file = folder_.write("book.txt", "-1 -0.3\n0.3 1\n");
  convert(source, out(), fmt::format("attn k2-@{}", file));
  const Checkpoint after = Checkpoint::open(out());
  const WeightView y = after.weight("layers.0.attn.wkv", kRows, kColumns);
  EXPECT_EQ(y.codebook.as<float>()[1], -0.3f);
  EXPECT_TRUE(says(bad(source, fmt::format("attn k3-@{}", file)), "4 values: a 3-bit codebook"));
}

TEST_F(Quantize, ReportsNonFiniteWeights) {
  TestSource source;
  source.weight("layers.0.attn.wkv", WeightFormat::kF32, 4, 64);
  const TensorView bad_weight = source.buffer(DType::kF32, {4, 64});
  bad_weight.as<float>()[70] = NAN;
  source.tensor("layers.0.attn.wq_a.weight", bad_weight);
  const std::string model = source.write(folder_);
  for (const char* format : {"k3", "fp8", "bf16"})
    EXPECT_TRUE(says(error_of(ErrorCode::kBadInput,
                              [&] { convert(model, out(format), fmt::format("attn {}", format)); }),
                     "layers.0.attn.wq_a"));
}

TEST_F(Quantize, RejectsATruncatedSource) {
  const std::string source = write_every_format(folder_);
  std::filesystem::resize_file(source + "/model.safetensors", 100000);
  EXPECT_TRUE(says(bad(source, "attn k3"), "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(out() + ".partial"));
}

}  // namespace
}  // namespace dsv4
