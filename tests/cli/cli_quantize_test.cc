// dsv4 quantize from the command line.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

class CliQuantize : public test::Cli {
 protected:
  std::string partial() const { return path("out.partial"); }
  static std::string folder_bytes(const std::string& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::string bytes;
    for (const fs::path& file : files) bytes += file.filename().string() + "\n" + read(file);
    return bytes;
  }
};

TEST_F(CliQuantize, DemoGeneratesStoriesAtEveryWidth) {
  for (int bits = 2; bits <= 5; ++bits) {
    const std::string out = path(fmt::format("k{}", bits));
    const auto made =
        dsv4(fmt::format("quantize demo -o {} --experts k{} --dense k{}", out, bits, bits));
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_NE(made.out.find("experts"), std::string::npos);
    // Sizes have the unit that their value needs: the demo is not "0.0 GiB".
    EXPECT_NE(made.out.find(" MiB from 17.2 MiB in "), std::string::npos) << made.out;
    const auto story = dsv4(fmt::format("run {} -n 24 --temp 0 -p 'Once upon a time'", out));
    EXPECT_EQ(story.exit_code, 0) << story.err;
    EXPECT_GT(story.out.size(), 30u);
  }
  // The lossless import generates the same text as MXFP4.
  ASSERT_EQ(dsv4("quantize demo --experts k4 -o " + path("lossless")).exit_code, 0);
  EXPECT_EQ(dsv4("run " + path("lossless") + " -n 40 --temp 0 -p Once").out,
            dsv4("run demo -n 40 --temp 0 -p Once").out);
}

// Folders for other engines are models here, too; FP4 of FP4 loses nothing.
TEST_F(CliQuantize, Fp4FoldersGenerateStories) {
  const std::string story = " -n 40 --temp 0 -p Once";
  for (const char* format : {"mxfp4", "nvfp4"}) {
    const std::string out = path(format);
    ASSERT_EQ(
        dsv4(fmt::format("quantize demo --experts {} --dense bf16 -o {}", format, out)).exit_code,
        0);
    const auto config = nlohmann::json::parse(read(out + "/config.json"));
    EXPECT_EQ(config.at("quantization_config").at("format"),
              fmt::format("{}-pack-quantized", format));
    const auto text = dsv4("run " + out + story);
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_GT(text.out.size(), 60u);
  }
  ASSERT_EQ(dsv4("quantize demo --experts mxfp4 -o " + path("same")).exit_code, 0);
  EXPECT_EQ(dsv4("run " + path("same") + story).out, dsv4("run demo" + story).out);
}

TEST_F(CliQuantize, RecipeAndReport) {
  write("recipe.txt", "# down has more\nexperts.down k4-bnf\nhead k5\nexperts 99 k2\n");
  const auto made = dsv4("quantize demo --json --experts k3 --recipe " + path("recipe.txt") +
                         " --shard-size 0.002 -o " + path("out"));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto report = nlohmann::json::parse(made.out);
  EXPECT_GT(report.at("shards"), 4);
  EXPECT_EQ(report.at("idle_rules"), nlohmann::json::array({path("recipe.txt") + ":4"}));
  EXPECT_EQ(report.at("totals").at("experts").at("exact"), 0);
  EXPECT_GT(report.at("codebooks").at("k3-e4m3"), 0);
  EXPECT_EQ(report.at("codebooks").at("k5-e4m3"), 1);
  EXPECT_TRUE(fs::exists(path("out/model.safetensors.index.json")));
  const auto info = dsv4("inspect " + path("out") + " --json");
  EXPECT_EQ(info.exit_code, 0) << info.err;
}

// A recipe is text of any encoding: its comments need not be UTF-8, which job.json is.
TEST_F(CliQuantize, ACommentHasAnyBytes) {
  write("recipe.txt", "# caf\xe9\nexperts k3\n");
  const std::string command =
      "quantize demo --recipe " + path("recipe.txt") + " --shard-size 0.0009 -o " + path("out");
  expect_error(command, "cannot write", "ulimit -f 600; trap '' XFSZ;");
  EXPECT_EQ(dsv4(command).err, "") << "the command continues its own job";
  EXPECT_EQ(dsv4("inspect " + path("out")).exit_code, 0);
}

// One K with another codebook runs other kernels on a GPU: every report names it.
TEST_F(CliQuantize, ReportsNameTheCodebook) {
  const auto json = [&](const std::string& command) {
    const auto result = dsv4(command + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("codebooks");
  };
  for (const char* book : {"bnf", "e4m3"}) {
    const std::string format = fmt::format("k3-{}", book), out = path(book);
    const auto made = dsv4("quantize demo --scales reference --experts " + format + " -o " + out);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_NE(made.out.find("codebooks: " + format), std::string::npos) << made.out;
    EXPECT_EQ(json("inspect " + out), json("plan demo --mtp --experts " + format)) << format;
    EXPECT_EQ(json("inspect " + out).size(), 1u);
    EXPECT_TRUE(json("inspect " + out).contains(format));
    EXPECT_NE(dsv4("inspect " + out).out.find("codebooks  " + format), std::string::npos);
    EXPECT_EQ(json("bench decode --steps 1 --context 8 " + out), json("inspect " + out));
  }
  EXPECT_TRUE(json("plan demo --experts k3").contains("k3-e4m3"));
  EXPECT_TRUE(json("plan demo --experts k4").contains("k4-e2m1"));
  EXPECT_TRUE(json("inspect demo").empty());
}

TEST_F(CliQuantize, UsageErrors) {
  const std::string to = " -o " + path("out");
  expect_error("quantize demo --experts k3", "--out");
  expect_error("quantize demo" + to, "nothing to do: give --experts k3");
  expect_error("quantize demo --experts k7" + to,
               "--experts: \"k7\": want keep, bf16, fp8, mxfp4, nvfp4, or k2");
  expect_error("quantize demo --dense k3-e2m1" + to, "--dense: \"k3-e2m1\"");
  expect_error("quantize demo --experts k3 --scales best" + to, "--scales");
  expect_error("quantize demo --experts k3 --shard-size 0" + to, "--shard-size");
  expect_error("quantize demo --experts k2-@" + path("none.txt") + to, "none.txt");
  expect_error("quantize demo --recipe " + path("none.txt") + to, "none.txt");
  expect_error("quantize " + path("nowhere") + " --experts k3" + to, "no model folder");
  expect_error("quantize demo --experts k3 --device tpu" + to, "no device 'tpu'");
  expect_error("quantize demo --experts k3 --device cpu,cpu" + to, "takes one device");
  write("recipe.txt", "experts k3\nexpert k2\n");
  expect_error("quantize demo --recipe " + path("recipe.txt") + to,
               "recipe.txt:2: \"expert\": want dense, experts");
  write("imatrix", "no safetensors");
  expect_error("quantize demo --experts k3 --imatrix " + path("imatrix") + to, "imatrix");
  expect_error("quantize demo --experts k3 --scales reference --imatrix " + path("imatrix") + to,
               "--scales search");
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_FALSE(fs::exists(partial()));
}

// On whatever this machine and this build have: the folder is that of the CPU.
TEST_F(CliQuantize, EveryDeviceWritesTheSameFolder) {
  const std::string command = "quantize demo --json --experts k3 --dense k4 -o ";
  ASSERT_EQ(dsv4(command + path("cpu")).exit_code, 0);
  const auto made = dsv4(command + path("auto") + " --device auto");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string device = nlohmann::json::parse(made.out).at("device");
  EXPECT_TRUE(device == "cpu" || device.starts_with("cuda")) << device;
  EXPECT_TRUE(folder_bytes(path("cpu")) == folder_bytes(path("auto")));
  if (device == "cpu") expect_error(command + path("gpu") + " --device cuda", "--device cuda");
}

// What `eval imatrix` writes has an entry for every expert that quantize searches; a text of one
// word leaves experts out.
TEST_F(CliQuantize, ReadsWhatEvalImatrixWrites) {
  write("text", read("tests/golden/demo/heldout.txt").substr(0, 3000));
  const auto collect = [&](const std::string& arguments) {
    return dsv4("eval imatrix demo --json -o " + path("imatrix") + " " + arguments);
  };
  const auto made = collect("-f " + path("text"));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto report = nlohmann::json::parse(made.out);
  EXPECT_GT(report.at("tokens"), 500);
  EXPECT_EQ(report.at("unused_experts"), 0);
  const auto quantized = dsv4("quantize demo --json --experts k2 --imatrix " + path("imatrix") +
                              " -o " + path("with"));
  ASSERT_EQ(quantized.exit_code, 0) << quantized.err;
  const auto use = nlohmann::json::parse(quantized.out);
  EXPECT_EQ(use.at("imatrix_used"), 5 * 8 * 3);
  EXPECT_EQ(use.at("imatrix_missing"), 8 * 3) << "the experts of the MTP block";
  EXPECT_EQ(use.at("imatrix_unknown"), 0);
  ASSERT_EQ(dsv4("quantize demo --experts k2 -o " + path("without")).exit_code, 0);
  EXPECT_NE(read(path("with/model.safetensors")), read(path("without/model.safetensors")));

  EXPECT_GT(nlohmann::json::parse(collect("--ids 0,17").out).at("unused_experts"), 0);
  expect_error("eval imatrix demo -o " + path("x"), "no input: give a text");
  expect_error("eval imatrix demo --ids 0,17 -o " + path("none/x"), "no folder");
  expect_error("eval imatrix demo --ids 0,17", "--out is required");
}

TEST_F(CliQuantize, RejectsImpossibleOutput) {
  fs::create_directories(path("taken"));
  expect_error("quantize demo --experts k3 -o " + path("taken"), "already exists");
  write("file", "x");
  expect_error("quantize demo --experts k3 -o " + path("file") + "/out", "cannot create");
  expect_error("quantize demo --experts k3 -o /proc/dsv4", "cannot create /proc/dsv4.partial");
}

TEST_F(CliQuantize, RejectsDamagedSource) {
  const std::string model = copy_model();
  fs::resize_file(model + "/model.safetensors", 100000);
  expect_error("quantize " + model + " --experts k3 -o " + path("out"), "model.safetensors");
  const std::string config = copy_model();
  write("model/config.json", "{");
  expect_error("quantize " + config + " --experts k3 -o " + path("out"), "not valid JSON");
}

// ulimit limits files to 600 blocks of 512 bytes, which acts like a full disk.
TEST_F(CliQuantize, FullDiskLosesNothing) {
  const std::string command = "quantize demo --experts k3 --shard-size 0.0009 -o ";
  expect_error(command + path("out"), "cannot write", "ulimit -f 600; trap '' XFSZ;");
  EXPECT_TRUE(fs::exists(partial()));
  EXPECT_EQ(dsv4(command + path("out")).exit_code, 0);
  EXPECT_FALSE(fs::exists(partial()));
  ASSERT_EQ(dsv4(command + path("whole")).exit_code, 0);
  EXPECT_EQ(folder_bytes(path("out")), folder_bytes(path("whole")));
}

TEST_F(CliQuantize, ResumesAfterAKill) {
  const std::string command = "quantize demo --experts k5 --dense k5 --shard-size 0.001 -o ";
  ASSERT_EQ(dsv4(command + path("whole")).exit_code, 0);
  // Killed after increasing delays: at the start, in the middle, after the end. --foreground:
  // without it timeout kills itself as well, and its child may outlive it and hold the lock.
  for (int i = 0; i < 8; ++i) {
    fs::remove_all(path("out"));
    const auto killed = dsv4(command + path("out"),
                             fmt::format("timeout --foreground -s KILL {:.3f}", 0.02 + 0.04 * i));
    // If it was killed after the rename but before the cleanup, OUT is complete, and the leftover
    // folder beside it must not disturb the next iteration.
    if (!fs::exists(path("out"))) {
      ASSERT_NE(killed.exit_code, 0);
      const auto again = dsv4(command + path("out") + " --json");
      ASSERT_EQ(again.exit_code, 0) << again.err;
      EXPECT_FALSE(fs::exists(partial()));
    }
    EXPECT_EQ(folder_bytes(path("out")), folder_bytes(path("whole"))) << "killed at " << i;
  }
}

TEST_F(CliQuantize, RejectsADifferentRecipe) {
  const std::string to = " --shard-size 0.0009 -o " + path("out");
  expect_error("quantize demo --experts k3" + to, "cannot write", "ulimit -f 600; trap '' XFSZ;");
  expect_error("quantize demo --experts k2" + to,
               "was started with a different recipe: repeat the original command to continue, or "
               "use --restart to start over");
  EXPECT_EQ(dsv4("quantize demo --restart --experts k2" + to).exit_code, 0);
}

TEST_F(CliQuantize, HelpHasAnExample) {
  const auto result = dsv4("quantize --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("Example: dsv4 quantize "), std::string::npos);
}

}  // namespace
}  // namespace dsv4
