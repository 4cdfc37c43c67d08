// dsv4 eval ppl, kld and needle from the command line.

#include <cmath>
#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/convert/ledger.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/tensor/buffer.h"
#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class CliEval : public test::Cli {
 protected:
  json report(const std::string& arguments) const {
    const test::CliResult result = dsv4(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return json::parse(result.out, nullptr, false);
  }
  static std::string story() { return read("tests/golden/demo/heldout.txt").substr(0, 2500); }
  // Comma-separated ids for the random golden model: V = 97, BOS 0.
  static std::string ids(int n) {
    std::string list = "0";
    for (int i = 1; i < n; ++i) list += fmt::format(",{}", 1 + i * 37 % 96);
    return list;
  }
  const std::string mixed = "tests/golden/hf/mixed --numerics exact ";
};

TEST_F(CliEval, Perplexity) {
  write("story.txt", story());
  const json whole = report("eval ppl demo -f " + path("story.txt"));
  // The demo model reaches 1.43 on long texts of its grammar; a short text has less to copy from.
  EXPECT_GT(whole.at("perplexity"), 1.2);
  EXPECT_LT(whole.at("perplexity"), 3.0);
  EXPECT_GT(whole.at("perplexity_error"), 0);
  EXPECT_EQ(whole.at("windows"), 1);
  EXPECT_NEAR(whole.at("bits_per_byte").get<double>() * whole.at("bytes").get<double>(),
              whole.at("nll").get<double>() * whole.at("tokens").get<double>() / std::log(2.0),
              1e-6);
  // BOS is 29 bytes of the text and is not predicted.
  EXPECT_EQ(whole.at("bytes").get<size_t>(), story().size() - 29);
  const json chunked = report("eval ppl demo --chunk 37 -f " + path("story.txt"));
  EXPECT_EQ(chunked.at("nll"), whole.at("nll"));
  const json windows = report("eval ppl demo --context 64 --stride 16 -f " + path("story.txt"));
  EXPECT_EQ(windows.at("tokens"), whole.at("tokens"));
  EXPECT_GT(windows.at("windows"), 10);
  const test::CliResult text = dsv4("eval ppl demo -f " + path("story.txt"));
  EXPECT_NE(text.out.find("bits per byte"), std::string::npos);
}

TEST_F(CliEval, PerplexityOfIds) {
  const json all = report("eval ppl " + mixed + "--ids " + ids(50));
  EXPECT_EQ(all.at("tokens"), 49) << "a leading BOS is neither doubled nor counted";
  EXPECT_EQ(all.count("bits_per_byte"), 0u);
}

TEST_F(CliEval, DivergenceFromItselfIsZero) {
  const std::string read_ids = "--ids " + ids(120) + " --context 50 --stride 20 ";
  const json model = report("eval kld " + mixed + read_ids + "--reference tests/golden/hf/mixed");
  EXPECT_EQ(model.at("kld").at("max"), 0);
  EXPECT_EQ(model.at("top1"), 1);
  EXPECT_EQ(model.at("perplexity_ratio"), 1);
  EXPECT_EQ(model.at("tokens"), 119);

  const json saved = report("eval kld " + mixed + read_ids + "--save-reference " + path("ref"));
  EXPECT_EQ(saved.at("bytes_per_token"), 4 * 97);
  for (const std::string& again : {std::string(), read_ids}) {
    const json file = report("eval kld " + mixed + again + "--reference " + path("ref"));
    EXPECT_EQ(file.at("kld"), model.at("kld"));
    EXPECT_EQ(file.at("perplexity"), model.at("perplexity"));
  }
}

TEST_F(CliEval, DivergenceFromAnotherModel) {
  const std::string other = copy_model();
  patch_config(other, "\"routed_scaling_factor\": 1.5", "\"routed_scaling_factor\": 1.25");
  const std::string how = " --numerics exact --ids " + ids(100) + " --reference ";
  const json there = report("eval kld " + other + how + "tests/golden/hf/mixed");
  EXPECT_GT(there.at("kld").at("mean"), 1e-6);
  EXPECT_GE(there.at("kld").at("p99"), there.at("kld").at("median"));
  EXPECT_GE(there.at("kld").at("max"), there.at("kld").at("p99_9"));
  EXPECT_NE(there.at("perplexity"), there.at("reference_perplexity"));
  // A file of `eval logits` gives the same result as the model itself.
  dsv4("eval logits tests/golden/hf/mixed --numerics exact --ids " + ids(100) + " -o " +
       path("logits"));
  const json file = report("eval kld " + other + " --numerics exact --reference " + path("logits"));
  EXPECT_EQ(file.at("kld"), there.at("kld"));
}

TEST_F(CliEval, DivergenceIsAppendedToTheLedger) {
  const std::string model = copy_model();
  Ledger ledger;
  ledger.source = ledger.output = ledger.options = json::object();
  write(std::string("model/") + kLedgerFile, to_text(ledger));
  const std::string command =
      "eval kld " + model + " --record --numerics exact --reference tests/golden/hf/mixed --ids ";
  report(command + ids(30));
  report(command + ids(40));
  const Ledger after = *read_ledger(model);
  ASSERT_EQ(after.evals.size(), 2u);
  EXPECT_EQ(after.evals[1].at("kind"), "kld");
  EXPECT_EQ(after.evals[1].at("kld").at("mean"), 0);
  EXPECT_EQ(after.evals[1].at("tokens"), 39);
}

TEST_F(CliEval, NeedleFindsFacts) {
  const json result = report("eval needle demo --distances 64,200 --prompts 5 --seed 3");
  ASSERT_EQ(result.at("recall").size(), 2u);
  for (const json& row : result.at("recall")) {
    EXPECT_EQ(row.at("total"), 5);
    EXPECT_GE(row.at("right"), 4);
  }
  EXPECT_EQ(result.at("template"), "demo/needle.json");
}

// A fact that is not in the prompt cannot be recalled: the score rates the answers.
TEST_F(CliEval, NeedleWithAnotherTemplate) {
  write("needle.json", R"({"facts": [{"fact": "Remember: the home of {key} is {value}.\n",
      "question": "Question: what is the number of {key}? Answer:", "answer": " {value}.\n",
      "keys": ["Tom"], "values": ["Selby"]}], "filler": ["The sun was warm.\n"]})");
  const json result =
      report("eval needle demo --distances 64 --prompts 3 --template " + path("needle.json"));
  EXPECT_EQ(result.at("recall")[0].at("right"), 0);
}

// On the CPU every implementation gives the same bits anyway.
TEST_F(CliEval, EveryEvaluationTakesDeterministic) {
  for (const std::string& command :
       {"eval ppl " + mixed + "--ids 1,2,3 --json",
        "eval logits " + mixed + "--ids 1,2,3 -o " + path("a"),
        "eval kld " + mixed + "--ids 1,2,3 --json --reference tests/golden/hf/mixed",
        std::string("eval needle demo --distances 64 --prompts 1")}) {
    EXPECT_EQ(dsv4(command + " --deterministic").exit_code, 0) << command;
  }
}

TEST_F(CliEval, HelpHasAnExample) {
  for (const char* command : {"ppl", "kld", "needle"}) {
    const test::CliResult result = dsv4(fmt::format("eval {} --help", command));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("Example: dsv4 "), std::string::npos) << command;
  }
}

TEST_F(CliEval, RejectsTextsWithNothingToCount) {
  write("empty.txt", "");
  write("bos.txt", "<｜begin▁of▁sentence｜>");
  expect_error("eval ppl demo -f " + path("none.txt"), "none.txt");
  expect_error("eval ppl demo -f " + path("empty.txt"), "empty.txt: the text is empty");
  expect_error("eval ppl demo -f " + path("bos.txt"), "no token to predict");
  expect_error("eval ppl demo", "no input: give a text with -f FILE or token ids");
  expect_error("eval ppl demo -f a --ids 1", "excludes");
  // Without BOS a first token has no predecessor.
  const std::string model = copy_model();
  patch_config(model, "\"bos_token_id\": 0", "\"bos_token_id\": null");
  expect_error("eval ppl " + model + " --numerics exact --ids 5",
               "--ids: no token to predict in a text of 1: want at least two");
  EXPECT_EQ(report("eval ppl " + model + " --numerics exact --ids 5,6").at("tokens"), 1);
  const json one = report("eval ppl " + mixed + "--ids 5");
  EXPECT_EQ(one.at("tokens"), 1);
  EXPECT_TRUE(one.at("perplexity_error").is_null()) << "one token has no variance";
  const std::string text = dsv4("eval ppl " + mixed + "--ids 5").out;
  EXPECT_NE(text.find("perplexity"), std::string::npos) << text;
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  EXPECT_EQ(text.find("+-"), std::string::npos) << text;
}

TEST_F(CliEval, BadOptions) {
  expect_error("eval ppl " + mixed + "--ids 1,97", "token id 97 at position 1 is outside [0, 97)");
  expect_error("eval ppl " + mixed + "--ids 1,2 --context 1", "--context");
  expect_error("eval ppl " + mixed + "--ids 1,2 --context 8 --stride 8", "want 1 to 7");
  expect_error("eval ppl " + mixed + "--ids 1,2 --context 1000000000", "positions of");
  expect_error("eval kld " + mixed + "--ids 1,2", "reference");
  expect_error("eval kld " + mixed + "--ids 1,2 --reference a --save-reference b", "reference");
  expect_error("eval needle demo --distances 3 --prompts 1", "shorter than the question itself");
  expect_error("eval needle demo --distances 70000 --prompts 1", "exceeds the model's 65536");
  expect_error("eval needle tests/golden/hf/mixed", "tokenizer.json");
  write("bad.json", "{}");
  expect_error("eval needle demo --template " + path("bad.json"), "facts must be");
}

TEST_F(CliEval, BadReferences) {
  const std::string how = "eval kld " + mixed + "--ids 1,2,3 --reference ";
  expect_error(how + path("nowhere"), "no reference");
  expect_error(how + "demo", "has 97 tokens, that of the reference demo has 1536");
  write("text", "no safetensors at all");
  expect_error(how + path("text"), path("text"));
  report("eval kld " + mixed + "--ids 1,2,3 --context 5 --save-reference " + path("ref"));
  expect_error("eval kld " + mixed + "--ids 1,2,4 --reference " + path("ref"), "a different text");
  expect_error("eval kld " + mixed + "--context 4 --reference " + path("ref"),
               "made with --context 5");
  expect_error("eval kld demo --reference " + path("ref"),
               "has 1536 tokens, that of the reference");
  expect_error("eval kld " + mixed + "--ids 1,2 --save-reference " + path("no/folder/x"),
               "no/folder/x");
}

// The metadata of a file must not reach a terminal as it is.
TEST_F(CliEval, NumericsOfAReferenceAreQuoted) {
  report("eval kld demo --ids 1,2,3 --save-reference " + path("ref"));
  std::string bytes = read(path("ref"));
  const size_t at = bytes.find("official");
  ASSERT_NE(at, std::string::npos);
  write("ref", bytes.replace(at, 8, "\\u001b[m"));
  const test::CliResult result = dsv4("eval kld demo --reference " + path("ref"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("ran in ?[m numerics"), std::string::npos) << result.err;
}

// A reference file with one NaN.
TEST_F(CliEval, RejectsNonFiniteLogits) {
  const Buffer logits(DType::kF32, {4, 97}), tokens(DType::kI32, {4});
  logits.as<float>()[2 * 97 + 5] = std::nanf("");
  write_safetensors(path("nan"), {{"logits", logits}, {"ids", tokens}});
  expect_error("eval kld " + mixed + "--reference " + path("nan"),
               "nan: the logit of token 5 at position 2 of window 0 is nan");
}

}  // namespace
}  // namespace dsv4
