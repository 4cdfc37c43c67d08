// The dsv4 program from the command line: exit codes, one-line errors, output formats.

#include "tests/cli/cli.h"

#include <nlohmann/json.hpp>
#include <regex>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using Result = test::CliResult;
using Cli = test::Cli;

TEST_F(Cli, RunWritesAStory) {
  const Result result = dsv4("run demo -p '' -n 40 --seed 1 --stats json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(result.out.size(), 40u);
  const auto stats = nlohmann::json::parse(result.err);
  EXPECT_EQ(stats.at("seed"), 1);
  EXPECT_GE(stats.at("generated_tokens").get<int>(), 1);
  EXPECT_EQ(dsv4("run demo -p '' -n 40 --seed 1").out, result.out)
      << "the same seed must give the same text";
}

TEST_F(Cli, RunReadsPromptsFromFiles) {
  write("prompt.txt", "Once upon a time");
  const Result file = dsv4("run demo -n 8 --temp 0 -f " + path("prompt.txt"));
  const Result text = dsv4("run demo -n 8 --temp 0 -p 'Once upon a time'");
  EXPECT_EQ(file.exit_code, 0) << file.err;
  EXPECT_EQ(file.out, text.out);
}

TEST_F(Cli, EvalLogitsWritesSafetensors) {
  const std::string out = path("logits.safetensors");
  const Result result =
      dsv4("eval logits tests/golden/hf/mixed --ids 1,2,3 --numerics exact --json -o " + out);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out).at("tokens"), 3);
  const SafetensorsFile file(out);
  EXPECT_EQ(to_string(file.tensors().at("logits")), "[3, 97] F32");
  EXPECT_EQ(to_string(file.tensors().at("ids")), "[3] I32");
  write("ids.txt", "1 2\n3\n");
  EXPECT_EQ(dsv4("eval logits tests/golden/hf/mixed --numerics exact --chunk 1 --ids @" +
                 path("ids.txt") + " -o " + path("b"))
                .exit_code,
            0);
  EXPECT_EQ(read(out), read(path("b"))) << "chunks of one token must give the same file";
}

TEST_F(Cli, InspectPrintsOneObject) {
  for (const char* what : {"demo", "ops", "env", "tests/golden/hf/mixed_hf"}) {
    const Result result = dsv4(fmt::format("inspect {} --json", what));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(nlohmann::json::parse(result.out).is_object());
    EXPECT_EQ(dsv4(fmt::format("inspect {}", what)).exit_code, 0);
  }
}

TEST_F(Cli, HelpHasAnExample) {
  for (const char* command : {"run", "eval logits", "inspect"}) {
    const Result result = dsv4(fmt::format("{} --help", command));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("Example: dsv4 "), std::string::npos) << command;
  }
}

TEST_F(Cli, WhatComputesTakesThreads) {
  for (const char* command : {"run", "chat", "serve", "quantize", "plan", "eval logits", "eval ppl",
                              "eval kld", "eval needle", "bench decode", "bench prefill"}) {
    EXPECT_NE(dsv4(fmt::format("{} --help", command)).out.find("-t,--threads N"), std::string::npos)
        << command;
  }
  for (const char* command :
       {"quantize demo --experts k3 -o o", "eval ppl demo --ids 1", "serve demo"})
    expect_error(fmt::format("{} -t 0", command), "'0' is not a whole number from 1 to 4096");
}

TEST_F(Cli, HelpIsACommandToo) {
  EXPECT_EQ(dsv4("help").out, dsv4("--help").out);
  EXPECT_EQ(dsv4("help eval ppl").out, dsv4("eval ppl --help").out);
}

TEST_F(Cli, CompletionKnowsCommandsAndOptions) {
  const std::string script = dsv4("completion bash").out;
  write("completion", script);
  const auto complete = [&](const std::string& words, int current) {
    return shell(fmt::format("bash -c 'source {}; COMP_WORDS=({}); COMP_CWORD={}; _dsv4; echo "
                             "${{COMPREPLY[@]}}'",
                             path("completion"), words, current))
        .out;
  };
  EXPECT_EQ(complete("dsv4 ins", 1), "inspect\n");
  EXPECT_EQ(complete("dsv4 eval p", 2), "ppl\n");
  EXPECT_EQ(complete("dsv4 eval ppl --str", 3), "--stride\n");
  EXPECT_EQ(complete("dsv4 run demo --thr", 3), "--threads\n");
  for (const char* shell_name : {"zsh", "fish"})
    EXPECT_NE(dsv4(fmt::format("completion {}", shell_name)).out.find("threads"),
              std::string::npos);
}

TEST_F(Cli, VersionListsTheBuildTargets) {
  const Result result = dsv4("--version");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 3) << result.out;
  EXPECT_EQ(result.out.rfind("dsv4 ", 0), 0u) << result.out;
  // "dsv4 0.2.0 (7c45c7f1aa)", with a + after changes; without the commit where git is not at hand.
  const bool clone = shell("git rev-parse HEAD").exit_code == 0;
  EXPECT_TRUE(std::regex_search(
      result.out, std::regex(clone ? "^dsv4 [0-9.]+ \\([0-9a-f]{10}\\+?\\)\n" : "^dsv4 [0-9.]+\n")))
      << result.out;
  EXPECT_NE(result.out.find("\nCPU: "), std::string::npos) << result.out;
#if DSV4_CUDA
  EXPECT_NE(result.out.find("\nCUDA: sm_"), std::string::npos) << result.out;
#else
  EXPECT_NE(result.out.find("\nCUDA: none\n"), std::string::npos) << result.out;
#endif
}

// A typo is answered with the name that it is nearest to; the option is named and not its value.
TEST_F(Cli, TyposAreAnsweredWithAName) {
  expect_error("rnu demo", "no command 'rnu': did you mean run? want run, eval,");
  expect_error("eval plp demo", "no command 'plp': did you mean ppl? want logits,");
  expect_error("run demo --tmp 3", "no option --tmp: did you mean --temp? (see dsv4 run --help)");
  expect_error("run demo --tmp=3", "no option --tmp: did you mean --temp?");
  expect_error("run demo --frobnicate 3", "no option --frobnicate (see dsv4 run --help)");
  expect_error("run demo again", "nothing takes the argument 'again'");
  expect_error("--verison", "no option --verison: did you mean --version? (see dsv4 --help)");
  expect_error("-v", "no option -v: did you mean --version?");
  expect_error("run dmeo",
               "no model folder dmeo: want a model folder (config.json, safetensors), "
               "ORG/NAME, or demo: did you mean demo?");
  expect_error("serve demo --api-key x", "the API key has fewer than 8 bytes");
  expect_error("serve demo --host lcoalhost",
               "'lcoalhost' is not an IP address or localhost: did you mean localhost?");
  expect_error("serve demo --host '[::1' --port 0", "'[::1' is not an IP address or localhost");
  // Brackets are how a URL has it: accepted, and refused later as an address that needs a key.
  expect_error("serve demo --host '[::]' --port 0", "--host :: without keys would serve everyone");
}

// An empty folder lacks a model, not a tokenizer.
TEST_F(Cli, AnEmptyFolderLacksAConfig) {
  std::filesystem::create_directory(path("empty"));
  for (const char* command : {"run", "chat", "serve", "inspect", "plan", "tokenize"})
    expect_error(fmt::format("{} {}", command, path("empty")), "empty/config.json");
  const std::string model = copy_model();
  std::filesystem::remove(model + "/tokenizer.json");
  expect_error("run " + model + " -p a", "tokenizer.json is missing, and text needs it");
}

// The name of a model on the hub is found in the cache of Hugging Face, or the error says how to
// get there.
TEST_F(Cli, NamesOfTheHub) {
  const std::string home =
      "env -u HF_HUB_CACHE -u HF_HOME -u XDG_CACHE_HOME HF_HUB_OFFLINE=1 HOME=" + path("home");
  expect_error("run deepseek-ai/DeepSeek-V4-Flash -p a",
               "`dsv4 pull deepseek-ai/DeepSeek-V4-Flash` fetches it", home);
  const std::string repo = path("home/.cache/huggingface/hub/models--some--Model");
  std::filesystem::create_directories(repo + "/refs");
  std::filesystem::create_directories(repo + "/snapshots");
  write("home/.cache/huggingface/hub/models--some--Model/refs/main", "0123abcd\n");
  std::filesystem::rename(copy_model(), repo + "/snapshots/0123abcd");
  const test::CliResult found = dsv4("inspect some/Model --json", home);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.err.find("some/Model is in the cache of Hugging Face: " + repo),
            std::string::npos);
  const test::CliResult moved =
      dsv4("inspect some/Model --json", "env HF_HUB_CACHE=" + path("home/.cache/huggingface/hub"));
  EXPECT_EQ(moved.out, found.out);
  expect_error("inspect other/Model", "no model folder other/Model", home);
  write("home/.cache/huggingface/hub/models--some--Model/refs/main", "../../..");
  expect_error("inspect some/Model", "no model folder some/Model", home);
}

// In a log there is no bar to redraw: lines instead, and none where the work is short.
TEST_F(Cli, ProgressInALogIsLines) {
  const std::string command = "inspect demo --verify";
  const test::CliResult lines = dsv4(command, "env DSV4_PROGRESS_S=0");
  EXPECT_EQ(lines.exit_code, 0);
  EXPECT_EQ(lines.err.find("dsv4: verifying ["), 0u) << lines.err;
  EXPECT_EQ(lines.err.find('\r'), std::string::npos);
  EXPECT_NE(lines.err.find("100%"), std::string::npos) << lines.err;
  EXPECT_EQ(dsv4(command).err, "");
}

// Every name reaches the option that it stands for: its value is refused in that option's words.
TEST_F(Cli, ServeTakesTheNamesOfOtherServers) {
  for (const char* option : {"-c", "--ctx-size", "--max-model-len", "--context"}) {
    for (const char* sign : {" ", "="}) {
      if (option[1] != '-' && *sign == '=') continue;
      expect_error(fmt::format("serve demo {}{}15", option, sign),
                   "--context: '15' is not a whole");
    }
  }
  for (const char* option : {"-np", "--parallel", "--max-batch"})
    expect_error(fmt::format("serve demo {} 0", option), "--max-batch: '0' is not a whole");
  for (const char* words : {"-m /nowhere", "--model /nowhere", "--model=/nowhere",
                            "--alias a b -m /nowhere", "--alias=a -m /nowhere --port 0"})
    expect_error(fmt::format("serve {}", words), "no model folder /nowhere");
  expect_error("chat -m /nowhere -c 64", "no model folder /nowhere");
  expect_error("run -m /nowhere -p a", "no model folder /nowhere");
  expect_error("serve -m demo again", "nothing takes the argument 'again'");
  expect_error("serve demo -m", "-m stands for MODEL and wants a value (see dsv4 serve --help)");
  expect_error("run demo --alias x", "no option --alias");
  // What stands after -- is no option.
  expect_error("serve -- -m", "no model folder -m");
  // All of them in one place.
  const std::string help = dsv4("serve --help").out;
  const std::string line = help.substr(std::min(help.find("names of other servers"), help.size()));
  for (const char* name :
       {"-m", "--model", "-c", "--ctx-size", "--max-model-len", "--alias", "-np", "--parallel"})
    EXPECT_NE(line.find(name), line.npos) << name;
}

TEST_F(Cli, HelpThatCannotBeWrittenIsAnError) {
  for (const char* option : {"--help", "run --help", "--version"})
    EXPECT_EQ(shell(fmt::format("{} {} >/dev/full", DSV4_BINARY, option)).exit_code, 1) << option;
}

// Scripts and containers leave TMPDIR as it is when its folder goes.
TEST_F(Cli, NoCommandNeedsATemporaryFolder) {
  EXPECT_EQ(dsv4("--version", "env TMPDIR=/nowhere/at/all").exit_code, 0);
}

TEST_F(Cli, UsageErrors) {
  expect_error("", "give a command: run, eval, inspect,");
  expect_error("frobnicate", "no command 'frobnicate': want run, eval, inspect,");
  const std::string cut = std::string(kMaxQuote, 'x') + "...'";
  expect_error(std::string(3000, 'x'), "no command '" + cut);
  expect_error("run demo -n " + std::string(3000, 'x'), "'" + cut);
  expect_error("eval x demo",
               "no command 'x': want logits, ppl, kld, needle, imatrix (see dsv4 eval");
  expect_error("eval", "give a command: logits, ppl");
  expect_error("run demo -n 0",
               "'0' is not a whole number from 1 to 1073741824, or -1 for no limit");
  expect_error("run", "model is required (see dsv4 run --help)");
  expect_error("run demo -n 1.5", "'1.5' is not a whole number from 1 to");
  expect_error("run demo -n abc", "'abc' is not a whole number");
  for (const char* seed : {"-1", "18446744073709551616", "10000000000000000000000000"})
    expect_error(fmt::format("run demo -p a --seed {}", seed), "is not a whole number from 0 to");
  expect_error("inspect", "inspect what?");
  expect_error("run demo --temp hot", "--temp");
  expect_error("run demo --numerics sloppy", "--numerics");
  expect_error("run demo --numerics 1", "--numerics");
  expect_error("run demo --temp nan", "--temp");
  expect_error("run demo -p a --impl moe=fast", "'moe=fast' is not in the op table; there is moe=");
  expect_error("bench decode demo --impl moe", "'moe' is not in the op table");
  expect_error("eval ppl demo --impl x=y", "'x=y' is not in the op table; `dsv4 inspect ops`");
  expect_error("run demo -p a --device gpu", "no device 'gpu': want auto, cpu, cuda or cuda:N");
  expect_error("run demo -p a --device cuda:x", "no device 'cuda:x'");
  const std::string words = std::string(5000, 'x');
  const Result device = dsv4("run demo -p a --device " + words);
  EXPECT_NE(device.err.find("xxx...'"), std::string::npos) << device.err;
  EXPECT_LT(device.err.size(), 700u) << "a long word is cut";
#if !DSV4_CUDA
  expect_error("run demo -p a --device cuda", "this program was built without CUDA");
#endif
  expect_error("run demo -n 0", "--max-tokens");
  expect_error("serve demo --port 70000", "'70000' is not a whole number from 0 to 65535");
  expect_error("serve demo --max-queue 1.5", "'1.5' is not a whole number from 0 to 1048576");
  expect_error("chat demo --context many", "'many' is not a whole number from 16 to");
  expect_error("bench serve --seed -1", "'-1' is not a whole number from 0 to");
}

TEST_F(Cli, OfALongErrorTheMiddleIsLeftOut) {
  const std::string command = "quantize demo --experts k2 -o ", name(5000, 'x');
  expect_error(command + name, "dsv4: cannot create xxx");
  expect_error(command + name, "xxx.partial: File name too long");
  EXPECT_LT(dsv4(command + name).err.size(), 650u);
}

TEST_F(Cli, MissingFiles) {
  expect_error("run " + path("nowhere"), "no model folder");
  expect_error("inspect " + folder_.string(), "config.json");
  expect_error("eval logits demo --ids @" + path("none.txt") + " -o " + path("o"), "none.txt");
  expect_error("run demo -f " + path("none.txt"), "none.txt");
  const std::string model = copy_model();
  fs::remove(model + "/model.safetensors");
  fs::remove(model + "/logits.safetensors");
  expect_error("inspect " + model, "safetensors");
  expect_error("run " + copy_model() + " -p a", "tokenizer.json");
}

TEST_F(Cli, BadIds) {
  const std::string to = " --numerics exact -o " + path("o");
  expect_error("eval logits tests/golden/hf/mixed --ids 1,x,3" + to, "\"x\" is not a token id");
  expect_error("eval logits tests/golden/hf/mixed --ids 1,97" + to,
               "token id 97 at position 1 is outside [0, 97)");
  expect_error("eval logits tests/golden/hf/mixed --ids 99999999999" + to, "is not a token id");
  expect_error("eval logits tests/golden/hf/mixed --ids ,," + to, "no token ids");
}

TEST_F(Cli, RejectsPromptBeyondMaxPositions) {
  expect_error("run demo -p hello -n 100000000", "positions");
}

TEST_F(Cli, BadConfig) {
  const std::string model = copy_model();
  write("model/config.json", "{\"hidden_size\": ");
  expect_error("inspect " + model, "not valid JSON");
  const std::string typed = copy_model();
  patch_config(typed, "\"hidden_size\": 64", "\"hidden_size\": \"wide\"");
  expect_error("inspect " + typed, "hidden_size must be an integer");
  const std::string ratio = copy_model();
  patch_config(ratio, "128", "64");
  expect_error("inspect " + ratio, "compress_ratios must be 0, 4 or 128, got 64");
  const std::string wide = copy_model();
  patch_config(wide, "\"hidden_size\": 64", "\"hidden_size\": 128");
  expect_error("inspect " + wide, "embed.weight: want [97, 128]");
}

TEST_F(Cli, DrafterTensorsAreListed) {
  const std::string model = copy_model();
  const SafetensorsFile file(model + "/model.safetensors");
  std::vector<std::pair<std::string, ConstTensorView>> tensors(file.tensors().begin(),
                                                               file.tensors().end());
  tensors.emplace_back("mtp.0.norm.weight", file.tensors().at("norm.weight"));
  write_safetensors(path("with_mtp"), tensors);
  fs::rename(path("with_mtp"), model + "/model.safetensors");
  EXPECT_NE(dsv4("inspect " + model).out.find("mtp.0.norm.weight"), std::string::npos);
  const auto info = nlohmann::json::parse(dsv4("inspect " + model + " --json").out);
  EXPECT_EQ(info.at("skipped_drafter_tensors"), nlohmann::json::array({"mtp.0.norm.weight"}));
  EXPECT_TRUE(info.at("unused_tensors").empty());
}

TEST_F(Cli, BadHashTable) {
  const std::string model = copy_model();
  const SafetensorsFile file(model + "/model.safetensors");
  std::vector<std::pair<std::string, ConstTensorView>> tensors(file.tensors().begin(),
                                                               file.tensors().end());
  Buffer table(DType::kI64, {97, 2});
  table.as<int64_t>()[7] = 77;
  for (auto& [name, view] : tensors) {
    if (name == "layers.0.ffn.gate.tid2eid") view = table;
  }
  write_safetensors(path("bad"), tensors);
  fs::rename(path("bad"), model + "/model.safetensors");
  expect_error("inspect " + model,
               "layers.0.ffn.gate.tid2eid: token 3 is routed to expert 77 of 6");
}

TEST_F(Cli, BadWeights) {
  const std::string model = copy_model();
  fs::resize_file(model + "/model.safetensors", 100000);
  expect_error("inspect " + model, "model.safetensors");
  const std::string lying = copy_model();
  std::string bytes = read(lying + "/model.safetensors");
  const size_t at = bytes.find("\"F32\"");
  bytes.replace(at, 5, "\"I32\"");
  std::ofstream(lying + "/model.safetensors", std::ios::binary) << bytes;
  expect_error("inspect " + lying, "I32");
}

TEST_F(Cli, FullDisk) {
  // 8 blocks of 512 bytes are less than the logits need; no partial file may remain.
  const std::string out = path("logits.safetensors");
  write("logits.safetensors", "old");
  expect_error(
      "eval logits tests/golden/hf/mixed --numerics exact --ids "
      "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -o " +
          out,
      "logits.safetensors", "ulimit -f 8;");
  EXPECT_EQ(read(out), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3)
      << "a temporary file remains";
  const std::string to = "eval logits tests/golden/hf/mixed --numerics exact --ids 1 -o ";
  expect_error(to + path("no/such/folder/x"), "no/such/folder");
  expect_error(to + "''", "-o '': want the name of a file");
  expect_error(to + std::string(300, 'x') + "/y", "cannot write xxx");
}

TEST_F(Cli, FullStandardOutput) {
  const std::string error = path("error");
  const std::string command =
      fmt::format("{} run demo -p a -n 4 --seed 1 >/dev/full 2>{}", DSV4_BINARY, error);
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(read(error), "dsv4: cannot write to standard output\n");
}

}  // namespace
}  // namespace dsv4
