// Damaged models and interrupted programs: one clear line, nothing silent, nothing left behind.

#include <nlohmann/json.hpp>

#include "dsv4/convert/ledger.h"
#include "dsv4/loader/safetensors.h"
#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Result = test::CliResult;

class CliDamage : public test::Cli {
 protected:
  // A copy of the demo model that a test may modify.
  std::string copy_demo() const {
    const std::string model = path("model");
    fs::remove_all(model);
    fs::copy("models/demo", model);
    return model;
  }
  // Fills a tensor with a repeated pattern of bytes.
  static void fill(const std::string& model, const std::string& tensor, const std::string& bytes) {
    const std::string file = model + "/model.safetensors";
    int64_t offset = 0, size = 0;
    {
      const SafetensorsFile opened(file);
      const ConstTensorView& view = opened.tensors().at(tensor);
      offset = view.data - opened.bytes().data();
      size = view.bytes();
    }
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(offset);
    for (int64_t at = 0; at < size; at += static_cast<int64_t>(bytes.size()))
      out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  static void write_json(const std::string& file, const json& value) {
    std::ofstream(file) << value.dump();
  }
  static json read_json(const std::string& file) { return json::parse(read(file)); }
  static bool has_control(const std::string& text) {
    return std::any_of(text.begin(), text.end(), [](unsigned char c) {
      return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    });
  }
};

const std::string kNaN32("\x00\x00\xc0\x7f", 4), kInf32("\x00\x00\x80\x7f", 4),
    kNaN16("\xc0\x7f", 2), kNaN8("\x7f"), kNaNScale("\xff");

TEST_F(CliDamage, NumbersThatAreNoneAreRefusedAtLoad) {
  const std::pair<const char*, std::string> damages[] = {
      {"layers.2.ffn.gate.bias", kNaN32},
      {"layers.2.ffn.gate.bias", kInf32},
      {"layers.3.attn.indexer.compressor.ape", kNaN32},
      {"layers.3.attn.indexer.compressor.norm.weight", kNaN16},
      {"layers.3.attn.indexer.compressor.wkv.weight", kNaN16},
      {"layers.3.attn.indexer.weights_proj.weight", kNaN16},
      {"layers.3.attn.indexer.wq_b.weight", kNaN8},
      {"layers.3.attn.indexer.wq_b.scale", kNaNScale},
      {"layers.0.attn.attn_sink", kNaN32},
      {"layers.4.ffn.experts.7.w2.scale", kNaNScale},
      {"hc_head_base", kNaN32},
      {"norm.weight", kNaN16},
      {"embed.weight", kNaN16}};
  for (const auto& [tensor, bytes] : damages) {
    const std::string model = copy_demo();
    fill(model, tensor, bytes);
    const std::string text = std::string(tensor) + ": value 0 is ";
    expect_error("inspect " + model, text);
    expect_error("run " + model + " -p Once -n 2", text);
  }
}

TEST_F(CliDamage, VerifyReadsEverything) {
  EXPECT_NE(dsv4("inspect demo --verify").out.find("every value is a number"), std::string::npos);
  const json report = json::parse(dsv4("inspect demo --verify --json").out);
  EXPECT_EQ(report.at("verified").at("tensors"), report.at("tensors"));
  EXPECT_EQ(report.at("verified").at("damaged"), 0);
  // A tensor that no weight of the model uses is not read when a model is loaded.
  const std::string model = copy_model();
  {
    const SafetensorsFile file(model + "/model.safetensors");
    std::vector<std::pair<std::string, ConstTensorView>> tensors(file.tensors().begin(),
                                                                 file.tensors().end());
    tensors.emplace_back("mtp.0.norm.weight", file.tensors().at("norm.weight"));
    write_safetensors(path("more"), tensors);
  }
  fs::rename(path("more"), model + "/model.safetensors");
  fill(model, "mtp.0.norm.weight", kNaN32);
  EXPECT_EQ(dsv4("inspect " + model).exit_code, 0);
  const Result result = dsv4("inspect --verify " + model);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("1 are damaged"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("mtp.0.norm.weight: value 0 is nan"), std::string::npos) << result.err;
}

TEST_F(CliDamage, CheckNumbersPassesAGoodModel) {
  EXPECT_EQ(dsv4("run demo -p Once --temp 0 -n 4 --check-numbers").out,
            dsv4("run demo -p Once --temp 0 -n 4").out);
  EXPECT_EQ(dsv4("eval ppl demo --ids 1,2,3,4,5 --check-numbers").exit_code, 0);
}

TEST_F(CliDamage, InspectReadsTheTokenizer) {
  const std::string model = copy_demo();
  json tokenizer = read_json(model + "/tokenizer.json");
  tokenizer["model"]["merges"][0] = "never heard";
  write_json(model + "/tokenizer.json", tokenizer);
  expect_error("inspect " + model, "is not in the vocab");
  std::ofstream(model + "/tokenizer.json") << "x";
  expect_error("inspect " + model, "tokenizer.json: not valid JSON at byte 1");
}

// Weights and config.json are all that inspecting, converting and measuring on ids need.
TEST_F(CliDamage, AModelWithoutATokenizerHasNoText) {
  const std::string model = copy_demo();
  fs::remove(model + "/tokenizer.json");
  const Result inspected = dsv4("inspect " + model);
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("none: run, chat and serve need tokenizer.json"), std::string::npos);
  EXPECT_EQ(json::parse(dsv4("inspect --json " + model).out).at("tokenizer"), nullptr);

  const Result converted = dsv4(fmt::format("quantize {} --experts k3 -o {}", model, path("k3")));
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(converted.err, "dsv4: note: " + model +
                               " has no tokenizer.json: the converted model will need one for "
                               "run, chat and serve\n");
  EXPECT_EQ(dsv4("eval ppl --ids 1,2,3 " + path("k3")).exit_code, 0);

  const std::string missing =
      path("k3") + "/tokenizer.json is missing, and text needs it: copy it from the original";
  for (const char* command : {"run -p x ", "chat ", "serve --port 0 ", "tokenize -p x ",
                              "eval ppl -f README.md ", "eval needle ", "inspect prompt "})
    expect_error(command + path("k3"), missing);
  // That file is all that is missing.
  fs::copy("models/demo/tokenizer.json", path("k3"));
  EXPECT_EQ(dsv4("run -n 2 -p Once " + path("k3")).exit_code, 0);
}

// A link to itself or to nothing is no missing file: the error names it, and the system's reason.
TEST_F(CliDamage, LinksThatLeadNowhereAreErrors) {
  const std::string model = copy_demo();
  for (const char* name : {"tokenizer.json", "generation_config.json", "quantization_ledger.json",
                           "model.safetensors.index.json"}) {
    const std::string file = model + "/" + name, kept = path("kept");
    const bool there = std::filesystem::exists(file);
    if (there) std::filesystem::rename(file, kept);
    for (const auto& [target, reason] : {std::pair{name, "Too many levels of symbolic links"},
                                         std::pair{"nowhere", "No such file or directory"}}) {
      std::filesystem::create_symlink(target, file);
      expect_error("inspect " + model, fmt::format("cannot open {}: {}", file, reason));
      std::filesystem::remove(file);
    }
    if (there) std::filesystem::rename(kept, file);
  }
  std::filesystem::create_symlink("needle.json", model + "/looping");
  std::filesystem::rename(model + "/looping", model + "/needle.json");
  expect_error("eval needle " + model + " --distances 64 --prompts 1", "Too many levels");
}

// What no file can be is an error of the system, in words of this program, and at once.
TEST_F(CliDamage, AStrangePromptCacheIsAnError) {
  const std::string run = "run demo -n 1 -p Once --prompt-cache ";
  std::filesystem::create_symlink("loop", path("loop"));
  expect_error(run + path("loop"),
               path("loop") + " is not a whole unit of the prefix cache: a link");
  expect_error(run + std::string(300, 'x'), "xxx: File name too long");
  shell("mkfifo " + path("pipe"));
  expect_error(run + path("pipe"), "not a regular file", "timeout 60");
}

// Bytes of a file that reach a terminal could move its cursor or set its title.
TEST_F(CliDamage, NoControlBytesOfAModelAreShown) {
  const std::string evil = "\x1b[2J\x1b]0;pwned\x07\n\xc2\x9b", found = "pwned";
  const auto check = [&](const std::string& arguments, const std::string& what) {
    const Result result = dsv4(arguments);
    EXPECT_FALSE(has_control(result.out)) << arguments << result.out;
    EXPECT_FALSE(has_control(result.err)) << arguments << result.err;
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_LE(result.err.size(), 2100u);
    EXPECT_NE((result.out + result.err).find(what), std::string::npos) << result.out << result.err;
  };
  std::string model = copy_demo();
  json config = read_json(model + "/config.json");
  config[evil] = 1;
  write_json(model + "/config.json", config);
  check("inspect " + model, found);
  json ledger = {{"version", 1},
                 {"tool", evil},
                 {"source", {}},
                 {"output", json::object()},
                 {"options", {}},
                 {"weights", json::array()},
                 {"exceptions", {{{"name", evil}, {"why", evil}}}},
                 {"evals", {{{evil, evil}}}}};
  for (const char* key : {"source", "options"}) ledger[key] = json::object();
  write_json(model + "/quantization_ledger.json", ledger);
  check("inspect " + model, "ledger     by ?[2J");

  model = copy_demo();
  const json tokenizer = read_json(model + "/tokenizer.json");
  json bad = tokenizer;
  bad["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "^" + evil;
  write_json(model + "/tokenizer.json", bad);
  check("run -p x " + model, found);
  bad = tokenizer;
  bad["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = std::string(1 << 20, '^');
  write_json(model + "/tokenizer.json", bad);
  check("run -p x " + model, "^^^...");
  bad = tokenizer;
  bad["model"]["vocab"][evil] = 3;
  write_json(model + "/tokenizer.json", bad);
  check("run -p x " + model, "tokenizer.json");
  bad = tokenizer;
  bad["model"]["merges"][0] = evil;
  write_json(model + "/tokenizer.json", bad);
  check("run -p x " + model, found);

  model = copy_demo();
  write_json(model + "/model.safetensors.index.json", {{"weight_map", {{"a", evil}}}});
  check("inspect " + model, found);
  write_json(model + "/model.safetensors.index.json",
             {{"weight_map", {{evil, "model.safetensors"}}}});
  check("inspect " + model, found);
  check("run -p x '/nowhere/\x1b[2J" + found + "'", "no model folder");
}

TEST_F(CliDamage, NoTextOfALibraryIsShown) {
  const std::string model = copy_demo();
  for (const char* text : {"{", "[]", "{\"version\": 1}", "{\"version\": \"x\"}", "\xff"}) {
    std::ofstream(model + "/quantization_ledger.json") << text;
    const Result result = dsv4("inspect " + model);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err.find("json.exception"), std::string::npos) << result.err;
  }
  const Result strange =
      shell(fmt::format("bash -c \"DSV4_MODELS=\\$'\\\\xff' {} inspect env --json\"", DSV4_BINARY));
  EXPECT_EQ(strange.exit_code, 0) << strange.err;
  EXPECT_TRUE(json::accept(strange.out)) << strange.out;
  const Result server = shell(fmt::format(
      "bash -c \"{} bench serve http://127.0.0.1:9 --requests 1 --json --model \\$'\\\\xff'\"",
      DSV4_BINARY));
  EXPECT_EQ(server.err, "dsv4: no request to http://127.0.0.1:9 got an answer\n");
}

TEST_F(CliDamage, LimitsOfConfigAreClear) {
  const std::string model = copy_demo();
  const json config = read_json(model + "/config.json");
  json streams = config;
  streams["hc_mult"] = 16;
  write_json(model + "/config.json", streams);
  expect_error("inspect " + model, "hc_mult must be between 1 and 8");
  json many = config;
  for (int i = 0; i < 20000; ++i) many[fmt::format("key{}", i)] = i;
  write_json(model + "/config.json", many);
  expect_error("quantize " + model + " --experts k3 -o " + path("out"), "more than 10000 keys");
  std::ofstream(model + "/config.json") << config.dump() << '\0' << "anything";
  expect_error("inspect " + model, "config.json: holds a NUL byte");
}

TEST_F(CliDamage, AFileThatShrinksEndsInOneLine) {
  const std::string model = copy_demo();
  const Result result = shell(fmt::format(
      "{0} run {1} -p Once -n -1 --ignore-eos >{2} & pid=$!; "
      "while [ ! -s {2} ]; do sleep 0.02; done; truncate -s 100000 {1}/model.safetensors; "
      "wait $pid",
      DSV4_BINARY, model, path("answer")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, fmt::format("dsv4: cannot read {}/model.safetensors: the file shrank or "
                                    "its disk failed while it was in use\n",
                                    fs::absolute(model).string()));
}

TEST_F(CliDamage, AnInterruptLeavesNoTemporaryFile) {
  const std::string command = fmt::format(
      "{0} eval kld demo --save-reference {1} -f tests/golden/demo/heldout.txt & pid=$!; "
      "while [ -z \"$(find {2} -name '*.tmp')\" ]; do sleep 0.02; done; kill -TERM $pid; wait $pid",
      DSV4_BINARY, path("saved.logits"), folder_.string());
  EXPECT_EQ(shell(command).exit_code, 143);
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

TEST_F(CliDamage, RecordingFailsBeforeTheWork) {
  const std::string how = " --reference demo --ids 1,2,3,4,5 ";
  expect_error("eval kld demo --record" + how, "has no quantization_ledger.json");
  const std::string model = copy_demo();
  std::ofstream(model + "/quantization_ledger.json") << "{";
  const Result plain = dsv4("eval kld " + model + how);
  EXPECT_EQ(plain.exit_code, 0) << "a measurement does not need the ledger: " << plain.err;
  EXPECT_NE(plain.out.find("KL divergence"), std::string::npos);
  EXPECT_EQ(read(model + "/quantization_ledger.json"), "{") << "nor does it write one";
  expect_error("eval kld --record " + model + how, "quantization_ledger.json: not valid JSON");
}

TEST_F(CliDamage, NeedleDistancesAreComparedFirst) {
  expect_error("eval needle demo --distances 1000000000 --prompts 1",
               "a distance of 1000000000 tokens exceeds the model's 65536 positions");
  expect_error("eval needle demo --distances 64,60000 --prompts 1000000",
               "--prompts 1000000: more than 134217728 tokens in all prompts");
}

TEST_F(CliDamage, QuantizeRefusesWhatRunRefuses) {
  const std::string model = copy_demo();
  std::string bytes = read(model + "/model.safetensors");
  const std::string name = "layers.1.attn.wkv.scale";
  bytes[bytes.find("\"" + name + "\"") + 1] = 'L';
  std::ofstream(model + "/model.safetensors", std::ios::binary) << bytes;
  expect_error("quantize " + model + " --experts k3 -o " + path("out"), name + " is not in ");
  expect_error("quantize demo --experts k3 -o demo", "demo names the bundled model");
  for (const char* file : {"tokenizer.json", "generation_config.json"}) {
    const std::string damaged = copy_demo();
    std::ofstream(damaged + "/" + file) << "[";
    expect_error("quantize " + damaged + " --experts k3 -o " + path("out"), file);
  }
  EXPECT_FALSE(fs::exists(path("out.partial")));
}

TEST_F(CliDamage, QuantizingTwiceIsNoted) {
  ASSERT_EQ(dsv4("quantize demo --experts k3 -o " + path("k3")).err, "");
  const Result twice = dsv4(fmt::format("quantize {} --experts k2 -o {}", path("k3"), path("k2")));
  EXPECT_EQ(twice.exit_code, 0) << twice.err;
  EXPECT_NE(twice.err.find("quantizing twice loses more than once"), std::string::npos);
  EXPECT_NE(twice.out.find("copied: "), std::string::npos) << twice.out;
}

TEST_F(CliDamage, PlanMarksWhatWasNotTried) {
  const Result plan = dsv4("plan --synthetic pro --experts k2 --gpus 8xh100");
  EXPECT_NE(plan.out.find("untried: a step over more than two GPUs"), std::string::npos)
      << plan.out;
  const json report = json::parse(dsv4("plan --synthetic pro --gpus 8xh100 --json").out);
  EXPECT_EQ(report.at("machines")[0].at("tried"), false);
  const Result reserve = dsv4("plan --synthetic flash --reserve 1048576");
  EXPECT_EQ(reserve.out.find("-1048"), std::string::npos) << reserve.out;
}

TEST_F(CliDamage, PlanReadsTheCodebooksOfARecipe) {
  expect_error("plan demo --experts k3-@" + path("none"), "none: No such file");
}

TEST_F(CliDamage, BenchmarksKeepToThePositions) {
  expect_error("bench decode demo --context 99999999", "exceed the model's 65536 positions");
  expect_error("bench prefill demo --tokens 70000", "exceed the model's 65536 positions");
}

TEST_F(CliDamage, GenerationDefaultsAreTyped) {
  const std::string model = copy_demo();
  const auto refused = [&](const char* text, const char* what) {
    std::ofstream(model + "/generation_config.json") << text;
    expect_error("run -p x " + model, what);
    expect_error("inspect " + model, what);
  };
  refused("{\"top_k\": 1.5}", "top_k must be a whole number");
  refused("{\"do_sample\": 0}", "do_sample must be true or false");
  refused("{\"temperature\": -1}", "temperature must be a number between 0 and 100");
  std::ofstream(model + "/generation_config.json")
      << "{\"temperature\": 0, \"repetition_penalty\": 1.9}";
  const std::string run = "run -p 'Once upon a time' -n 30 --quiet " + model;
  EXPECT_NE(dsv4(run).out, dsv4(run + " --repeat-penalty 1").out) << "the file's penalty counts";
}

}  // namespace
}  // namespace dsv4
