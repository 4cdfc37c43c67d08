// `dsv4 run`, tokenize and detokenize as a user of other engines expects them: pipes, several
// prompts, ends of an answer, and what goes to which stream.

#include <nlohmann/json.hpp>

#include <deque>

#include "dsv4/base/mapped_file.h"
#include "dsv4/loader/safetensors.h"
#include "tests/cli/cli.h"
#include "tests/harness/random_model.h"

namespace dsv4 {
namespace {

using nlohmann::json;
using Result = test::CliResult;

class CliRun : public test::Cli {
 protected:
  Result with_input(const std::string& input, const std::string& arguments) const {
    write("input", input);
    return shell(fmt::format("cat {} | {} {}", path("input"), DSV4_BINARY, arguments));
  }
  // The lines of JSON output.
  static std::vector<json> lines(const std::string& out) {
    std::vector<json> all;
    std::istringstream in(out);
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    return all;
  }
  const std::string greedy_ = "run demo --temp 0 -n 12 ";
};

TEST_F(CliRun, ReadsStandardInput) {
  const std::string want = dsv4(greedy_ + "-p 'Once upon a time'").out;
  ASSERT_GT(want.size(), 20u);
  EXPECT_EQ(with_input("Once upon a time\n", greedy_).out, want);
  EXPECT_EQ(with_input("Once upon a time", greedy_ + "-f -").out, want);
  EXPECT_EQ(with_input("Once upon a time\n", greedy_ + "-f /dev/stdin").out, want);
  EXPECT_EQ(
      shell(fmt::format("bash -c \"{} {} -f <(echo Once upon a time)\"", DSV4_BINARY, greedy_)).out,
      want);
}

TEST_F(CliRun, NoPromptIsAnError) {
  expect_error("run demo", "no prompt: give -p TEXT, -f FILE or a pipe");
  for (const char* command : {"run demo -p a", "eval ppl demo --ids 1,2,3", "bench decode demo",
                              "bench prefill demo", "eval needle demo"})
    expect_error(std::string(command) + " --device cpu --experts-memory auto",
                 "on the CPU all experts are in host memory");
  expect_error("run demo -p a --gpus cpu,cpu --experts-memory auto", "for one GPU, not for ranks");
  expect_error("run demo -p a --experts-memory 5", "want a size such as 60G or 512M");
  expect_error("run demo -p a --experts-counts f", "--experts-memory");
  expect_error("run demo -p a -f b", "-f");
  EXPECT_EQ(dsv4(greedy_ + "-p ''").exit_code, 0) << "an empty prompt that was asked for";
}

TEST_F(CliRun, OtherCommandsReadStandardInputToo) {
  const std::string text = "Mira was a girl from a farm.";
  write("text", text);
  const json file = json::parse(dsv4("eval ppl demo --json -f " + path("text")).out);
  const json pipe = json::parse(with_input(text, "eval ppl demo --json -f -").out);
  EXPECT_EQ(pipe.at("nll"), file.at("nll"));
  const std::string ids = with_input(text, "tokenize demo").out;
  const json by_ids = json::parse(with_input(ids, "eval ppl demo --json --ids @-").out);
  EXPECT_EQ(by_ids.at("nll"), file.at("nll"));
}

// What the files hold is in expert_trace_test.
TEST_F(CliRun, TracesExperts) {
  write("text", "Mira was a girl from a farm.");
  const std::string replay = "python3 tools/expert_trace.py replay --json --warm 1 ";
  const auto steps = [&](const std::string& file) {
    return json::parse(shell(replay + path(file)).out).at("steps").get<int>();
  };
  const Result plain = dsv4(greedy_ + "-p 'Once upon a time'");
  const Result traced = dsv4(greedy_ + "-p 'Once upon a time' --experts-trace " + path("run"));
  EXPECT_EQ(traced.out, plain.out);
  EXPECT_GT(steps("run"), 3);
  const std::string eval = "eval ppl demo -f " + path("text") + " --chunk 4 --experts-trace ";
  EXPECT_EQ(dsv4(eval + path("eval")).exit_code, 0);
  EXPECT_GT(steps("eval"), 1);
  expect_error(eval + path("eval"), "exists: give another file for the trace of experts");
  expect_error("run demo -p a --experts-trace /no/x", "cannot write /no/x: No such file");
  expect_error("run demo -p a --check-numbers --experts-trace " + path("b"), "--check-numbers");
  EXPECT_FALSE(std::filesystem::exists(path("b")));
}

// The uses are the choices in the trace, one token at a time.
TEST_F(CliRun, CountsExperts) {
  write("text", "Mira was a girl from a farm.");
  const auto counts = [&](const std::string& file) {
    return json::parse(shell("cat " + path(file)).out);
  };
  const auto check = [&](const std::string& command, const std::string& name) {
    const Result result = dsv4(command + " --experts-trace " + path(name + ".trace") +
                               " --experts-counts-out " + path(name + ".json"));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    shell("python3 tools/expert_trace.py replay --batch 1 --warm 1 " + path(name + ".trace") +
          " --counts " + path(name + ".replayed"));
    EXPECT_EQ(counts(name + ".json"), counts(name + ".replayed"));
  };
  check(greedy_ + "-p 'Once upon a time'", "run");
  check("eval ppl demo -f " + path("text") + " --chunk 4", "eval");
  const std::string alone = "run demo -p a -n 2 --experts-counts-out ";
  EXPECT_EQ(dsv4(alone + path("alone")).exit_code, 0);
  EXPECT_EQ(counts("alone").at("layers").size(), counts("run.json").at("layers").size());
  expect_error(alone + path("alone"), "exists: give another file for the uses of experts");
  expect_error(alone + "/no/x", "cannot write /no/x: No such file");
  expect_error("run demo -p a --check-numbers --experts-counts-out " + path("b"),
               "--check-numbers");
  expect_error("bench decode demo --experts-counts-out " + path("b"), "--experts-memory");
  EXPECT_FALSE(std::filesystem::exists(path("b")));
}

TEST_F(CliRun, TokenizeAndBack) {
  const std::string text = "Once upon a time <｜User｜> \xff bytes\n";
  const Result ids = with_input(text, "tokenize demo");
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(with_input(ids.out, "detokenize demo").out, text);
  EXPECT_EQ(with_input(ids.out, "detokenize demo --skip-special").out,
            "Once upon a time  \xff bytes\n");
  const json report = json::parse(dsv4("tokenize demo --json -p 'a lantern'").out);
  std::string joined;
  for (const json& piece : report.at("pieces")) joined += piece.get<std::string>();
  EXPECT_EQ(joined, "a lantern");
  expect_error("detokenize demo --ids 1,99999", "token id 99999 at position 1 is outside [0, ");
}

TEST_F(CliRun, EndsAtAStopText) {
  const std::string all = dsv4(greedy_ + "-p 'Once upon a time'").out;
  const std::string stop = all.substr(10, 5);
  const Result cut = dsv4(greedy_ + "-p 'Once upon a time' --stop '" + stop + "'");
  EXPECT_EQ(cut.out, all.substr(0, all.find(stop)) + "\n");
  EXPECT_NE(cut.err.find("ended by a stop text"), std::string::npos) << cut.err;
}

TEST_F(CliRun, SaysWhyItEnded) {
  EXPECT_NE(dsv4(greedy_ + "-p Once").err.find("cut after 12 tokens"), std::string::npos);
  EXPECT_EQ(dsv4(greedy_ + "-p Once --quiet").err, "");
  const json report = json::parse(dsv4(greedy_ + "-p Once --stats json").err);
  EXPECT_EQ(report.at("finish"), "length");
}

// The demo model ends an answer by its end-of-sentence token after a story.
constexpr const char* kAsk =
    "'<｜User｜>Tell me a story about Mira and a lantern.<｜Assistant｜></think>'";

TEST_F(CliRun, EndOfSentenceEndsTheAnswer) {
  const Result ended = dsv4(fmt::format("run demo --temp 0 -n -1 -p {}", kAsk));
  EXPECT_NE(ended.err.find("ended by the model"), std::string::npos) << ended.err;
  const Result more = dsv4(fmt::format("run demo --temp 0 -n 200 --ignore-eos -p {}", kAsk));
  EXPECT_EQ(more.out.rfind(ended.out.substr(0, ended.out.size() - 1), 0), 0u);
  EXPECT_NE(more.err.find("cut after 200 tokens"), std::string::npos) << more.err;
  EXPECT_EQ(more.out.find("<｜"), std::string::npos) << "special tokens are hidden";
  const Result special =
      dsv4(fmt::format("run demo --temp 0 -n 200 --ignore-eos --special -p {}", kAsk));
  EXPECT_NE(special.out.find("<｜end▁of▁sentence｜>"), std::string::npos) << special.out;
}

// models/demo/README.md quotes this answer.
TEST_F(CliRun, TheModelCardShowsWhatTheEngineSays) {
  std::istringstream card(read("models/demo/README.md"));
  std::string quoted;
  for (std::string line; std::getline(card, line);) {
    if (line.rfind("> ", 0) != 0) continue;
    if (!quoted.empty()) quoted += ' ';
    quoted += line.substr(2);
  }
  EXPECT_EQ(dsv4(fmt::format("run demo --temp 0 -p {}", kAsk)).out, quoted + "\n");
}

TEST_F(CliRun, EchoPrintsThePrompt) {
  const std::string answer = dsv4(greedy_ + "-p 'Once upon'").out;
  EXPECT_EQ(dsv4(greedy_ + "--echo -p 'Once upon'").out, "Once upon" + answer);
}

TEST_F(CliRun, ContextLimitsTheAnswer) {
  const Result result =
      dsv4("run demo --temp 0 --ignore-eos --context 20 -n -1 -p 'Once upon' --stats json");
  const json report = json::parse(result.err);
  EXPECT_EQ(report.at("prompt_tokens").get<int>() + report.at("generated_tokens").get<int>(), 20);
  expect_error("run demo --context 4 -p 'Once upon a time there was a girl'",
               "leave no room for an answer in a context of 4");
}

// Side by side in one engine, printed in order, each as if it ran alone.
TEST_F(CliRun, SeveralPrompts) {
  write("a.txt", "Once upon a time\n");
  write("b.txt", "In a valley full of flowers\n");
  const std::string a = dsv4(greedy_ + "-f " + path("a.txt")).out,
                    b = dsv4(greedy_ + "-f " + path("b.txt")).out;
  const Result both = dsv4(greedy_ + fmt::format("-f {} -f {}", path("a.txt"), path("b.txt")));
  EXPECT_EQ(both.out,
            fmt::format("==> {} <==\n{}\n==> {} <==\n{}", path("a.txt"), a, path("b.txt"), b));
  const auto answers =
      lines(with_input("\"Once upon a time\"\n\n{\"prompt\": \"In a valley full of flowers\", "
                       "\"max_tokens\": 3}\n",
                       greedy_ + "--jsonl -")
                .out);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].at("text").get<std::string>() + "\n", a);
  EXPECT_EQ(answers[1].at("generated_tokens"), 3);
  EXPECT_EQ(b.rfind(answers[1].at("text").get<std::string>(), 0), 0u);
}

TEST_F(CliRun, BadJsonLines) {
  const auto wrong = [&](const std::string& text, const std::string& what) {
    write("lines", text);
    expect_error("run demo --jsonl " + path("lines"), what);
  };
  wrong("{\"prompt\": 3}", "line 1: want a JSON string");
  wrong("\"a\"\nnonsense", "line 2: want a JSON string");
  wrong("{\"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens must be a whole number from 1");
  wrong("{\"prompt\": \"a\", \"\\u001b[2J\": 0}", "unknown key '?[2J'");
  wrong("\n", "no prompt");
}

TEST_F(CliRun, LogProbabilities) {
  const json answer = json::parse(dsv4(greedy_ + "--logprobs -p 'Once upon'").out);
  ASSERT_EQ(answer.at("tokens").size(), 12u);
  std::string text;
  for (const json& token : answer.at("tokens")) {
    EXPECT_LE(token.at("logprob").get<double>(), 0.0);
    text += token.at("token").get<std::string>();
  }
  EXPECT_EQ(text, answer.at("text"));
}

// Options win over generation_config.json, and each reaches the sampler.
TEST_F(CliRun, SamplingOptions) {
  const std::string prompt = " -p 'Once upon a time' -n 40 ",
                    greedy = dsv4("run demo --temp 0" + prompt).out;
  for (const char* one : {"--top-k 1", "--top-p 0.000001", "--min-p 1"})
    EXPECT_EQ(dsv4(fmt::format("run demo --temp 2 --seed 3 {}{}", one, prompt)).out, greedy) << one;
  for (const char* other : {"--repeat-penalty 3", "--presence-penalty 50", "--frequency-penalty 9"})
    EXPECT_NE(dsv4(fmt::format("run demo --temp 0 {}{}", other, prompt)).out, greedy) << other;
  const auto first_id = [&](const std::string& bias) {
    const Result result = dsv4("run demo --temp 0 --logprobs" + bias + prompt);
    return json::parse(result.out).at("tokens")[0].at("id").get<int>();
  };
  const int first = first_id("");
  EXPECT_NE(first_id(fmt::format(" --logit-bias {}:-100", first)), first);
  expect_error("run demo -p a --logit-bias 1:x", "want ID:BIAS");
}

TEST_F(CliRun, ThreadsGiveTheSameText) {
  const std::string one = dsv4(greedy_ + "-p 'Once upon' -t 1").out;
  EXPECT_EQ(dsv4(greedy_ + "-p 'Once upon' --threads 3").out, one);
  expect_error("run demo -p a -t 0", "'0' is not a whole number from 1 to 4096");
}

// The number is that of OMP_NUM_THREADS, where it is set, and -t comes before it. The library's
// constructor must already have seen the short spinning: OMP_DISPLAY_ENV prints what it has read.
TEST_F(CliRun, WaitingThreadsSpinShortly) {
  const auto spins = [&](const std::string& environment) {
    const std::string text = dsv4("--version", environment + " OMP_DISPLAY_ENV=verbose").err;
    const size_t at = text.find("GOMP_SPINCOUNT = '");
    return at == text.npos ? "" : text.substr(at + 18, text.find('\'', at + 18) - at - 18);
  };
  const std::string clean = "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT";
  if (spins(clean + " GOMP_SPINCOUNT=77").empty()) GTEST_SKIP() << "not GCC's OpenMP library";
  const std::string by_default = spins(clean);
  EXPECT_FALSE(by_default.empty());
  EXPECT_LE(std::stoll(by_default), 10000) << "the library's own default is 300000";
  EXPECT_EQ(spins(clean + " GOMP_SPINCOUNT=77"), "77") << "the user's choice stands";
  EXPECT_NE(spins(clean + " OMP_WAIT_POLICY=active"), by_default);
}

TEST_F(CliRun, BadNumberOfThreadsInTheEnvironment) {
  for (const char* value : {"abc", "0", "-1"})
    expect_error("inspect env", fmt::format("OMP_NUM_THREADS is '{}': want a number", value),
                 fmt::format("env OMP_NUM_THREADS={}", value));
  EXPECT_NE(dsv4("inspect env", "env OMP_NUM_THREADS=3").out.find("threads 3: "),
            std::string::npos);
}

TEST_F(CliRun, SpeculationIsRefusedWithoutABlock) {
  const std::string without = path("without");
  std::filesystem::create_directory(without);
  for (const auto& entry : std::filesystem::directory_iterator("models/demo"))
    if (entry.is_regular_file())
      std::filesystem::copy(entry.path(), without + "/" + entry.path().filename().string());
  patch_config(without, "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 0");
  expect_error("run " + without + " -p Hello --speculate mtp",
               "without has no MTP block (num_nextn_predict_layers is 0");
  expect_error("run demo -p Hello --speculate dspark",
               "has no DSpark drafter (config.json has no dspark_block_size); want lookup or off");
  const Result lookup = dsv4("run " + without + " -p Hello -n 3 --speculate auto");
  EXPECT_NE(lookup.err.find("speculation by lookup alone: "), std::string::npos) << lookup.err;
}

// The bundled model with a random DSpark drafter instead of its block.
std::string write_demo_with_dspark(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator("models/demo")) {
    const std::string file = entry.path().filename().string();
    const bool weights = file.starts_with("mtp.") || file.ends_with(".index.json");
    if (entry.is_regular_file() && !weights) fs::copy(entry.path(), folder + "/" + file);
  }
  json config = json::parse(read_text_file("models/demo/config.json"));
  for (int i = 0; i < 2; ++i) config["compress_ratios"].push_back(0);
  config.update(json::parse(R"({"dspark_block_size": 5, "dspark_markov_rank": 16,
                                "dspark_noise_token_id": 7, "dspark_target_layer_ids": [2, 4]})"));
  std::ofstream(folder + "/config.json") << config.dump();
  Rng rng(3);
  std::deque<Buffer> values;
  std::vector<std::pair<std::string, ConstTensorView>> tensors;
  json map = json::object();
  const SafetensorsFile model("models/demo/model.safetensors");
  for (const auto& [name, view] : model.tensors()) map[name] = "model.safetensors";
  for (const NamedTensor& tensor :
       official_tensor_list(parse_config(config.dump(), "config.json"), true)) {
    if (!tensor.name.starts_with("mtp.")) continue;
    const Buffer& bytes =
        values.emplace_back(DType::kU8, std::initializer_list<int64_t>{tensor.meta.bytes()});
    const TensorView view(tensor.meta, bytes.view().data);
    test::fill_random(tensor.name, view, rng);
    tensors.emplace_back(tensor.name, view);
    map[tensor.name] = "dspark.safetensors";
  }
  write_safetensors(folder + "/dspark.safetensors", tensors);
  std::ofstream(folder + "/model.safetensors.index.json") << json{{"weight_map", map}}.dump();
  return folder;
}

TEST_F(CliRun, DsparkChangesNothing) {
  const std::string model = write_demo_with_dspark(path("dspark"));
  const std::string run =
      "run " + model + " -p 'Long ago,' -n 40 --seed 3 --deterministic --stats json";
  const std::string want = dsv4(run).out;
  EXPECT_EQ(want, dsv4("run demo -p 'Long ago,' -n 40 --seed 3 --deterministic").out);
  for (const char* source : {"dspark", "auto", "dspark --draft-tokens 5", "dspark --draft-head k4",
                             "dspark --gpus cpu,cpu,cpu", "auto --gpus cpu,cpu"}) {
    const Result result = dsv4(run + " --speculate " + source);
    EXPECT_EQ(result.out, want) << source;
    EXPECT_EQ(result.err.find("lookup alone"), std::string::npos) << result.err;
    EXPECT_GT(json::parse(result.err).at("drafts").at("drafter").at("drafted"), 0) << source;
  }
  expect_error("run " + model + " -p Hello --speculate dspark --draft-tokens 7",
               "--draft-tokens 7: the model's block guesses 5");
  expect_error("run " + model + " -p Hello --speculate mtp",
               "has a DSpark drafter and no MTP block");
  expect_error("bench decode " + model +
                   " --speculate dspark --draft-tokens 7 --accept 0.5 --context 64 --steps 1",
               "the model's DSpark block guesses 5");
  const json round = json::parse(dsv4("bench decode " + model +
                                      " --speculate dspark --draft-tokens 5 --accept 0.8,0.6 "
                                      "--context 64 --steps 2 --json")
                                     .out)
                         .at("results")
                         .at(0);
  EXPECT_EQ(round.at("drafts_from"), "dspark");
  EXPECT_GT(round.at("draft_ms"), 0);
}

TEST_F(CliRun, SpeculationChangesNothing) {
  const std::string run = "run demo -p 'Long ago,' -n 60 --seed 3 --deterministic --stats json";
  const std::string want = dsv4(run).out;
  for (const char* source : {"mtp", "auto", "mtp --draft-tokens 3", "mtp --draft-head k4"}) {
    const Result result = dsv4(run + " --speculate " + source);
    EXPECT_EQ(result.out, want) << source;
    EXPECT_EQ(result.err.find("lookup alone"), std::string::npos) << result.err;
    EXPECT_GT(json::parse(result.err).at("drafts").at("drafter").at("accepted"), 0) << source;
  }
  EXPECT_NE(dsv4("inspect demo").out.find("one MTP block"), std::string::npos);
  const json plan = json::parse(dsv4("plan demo --json").out),
             mtp = json::parse(dsv4("plan demo --mtp --json").out);
  for (const char* key : {"weights_bytes", "cache_bytes", "bytes_per_sequence", "workspace_bytes"})
    EXPECT_LT(plan.at(key).get<int64_t>(), mtp.at(key).get<int64_t>()) << key;
}

// A second run of a longer text computes only what the file does not hold, and says the same.
TEST_F(CliRun, PromptCacheKeepsAConversation) {
  std::string text = "Tell me of the farm again.";
  for (int i = 0; i < 40; ++i) text += " The mill stood by the river, and the boy had a red kite.";
  write("text", text);
  write("more", text + " The kite flew over the mill. In the morning the boy");
  const std::string run = "run demo --temp 0 -n 8 --deterministic --stats json -f ",
                    cache = " --prompt-cache " + path("cache");
  const auto cached = [](const Result& result) {
    return json::parse(result.err).at("cached_tokens").get<int64_t>();
  };
  const Result first = dsv4(run + path("text") + cache);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(cached(first), 0);
  const Result plain = dsv4(run + path("more")), second = dsv4(run + path("more") + cache);
  EXPECT_GE(cached(second), 256);
  EXPECT_EQ(second.out, plain.out);
  expect_error("run demo -p a --prompt-cache " + path("text"), "not a whole unit");
  EXPECT_EQ(read(path("text")), text) << "another file is not replaced";
  expect_error(run + path("text") + " -f " + path("more") + cache, "--prompt-cache is for one");
}

}  // namespace
}  // namespace dsv4
