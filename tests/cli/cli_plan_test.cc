// dsv4 plan and dsv4 inspect at full size: their output for the released layouts.

#include <nlohmann/json.hpp>

#include "tests/cli/cli.h"
#include "tests/harness/sparse_checkpoint.h"
#include "tests/harness/tiny_model.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

class CliPlan : public test::Cli {
 protected:
  Json json_of(const std::string& arguments) const {
    const test::CliResult result = dsv4(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << "exactly one object";
    return Json::parse(result.out);
  }
};

TEST_F(CliPlan, SyntheticFlash) {
  const Json plan = json_of("plan --synthetic flash --experts k3 --gpus 1xh200 --context 1048576");
  EXPECT_NEAR(plan.at("weights_bytes").get<double>() / (1 << 30), 113.1, 0.5);
  EXPECT_EQ(plan.at("kv_bytes_per_token"), 3514.25);
  EXPECT_EQ(plan.at("bytes_per_sequence"), 12206080 + 43 * 4 * 37440);
  EXPECT_GT(plan.at("workspace_bytes"), 100 << 20);
  EXPECT_EQ(plan.at("fits"), true);
  EXPECT_EQ(plan.at("max_context_tokens"), 1048576);
  EXPECT_EQ(plan.at("max_sequences"), 5);
  EXPECT_EQ(plan.at("machine"), "1xh200");
  EXPECT_EQ(plan.at("machines").size(), 9u);
  EXPECT_NEAR(plan.at("formats").at("k3").at("bits_per_weight"), 3.25, 0.001);
}

// Experts as others publish them; of a folder the option names what `quantize` writes.
TEST_F(CliPlan, SyntheticFp4) {
  const Json official = json_of("plan --synthetic flash");
  EXPECT_EQ(json_of("plan --synthetic flash --experts mxfp4"), official);
  EXPECT_NEAR(official.at("formats").at("mxfp4").at("bits_per_weight"), 4.25, 0.001);
  const Json nvfp4 = json_of("plan --synthetic flash --experts nvfp4");
  EXPECT_NEAR(nvfp4.at("formats").at("nvfp4").at("bits_per_weight"), 4.5, 0.001);
  EXPECT_FALSE(nvfp4.at("formats").contains("mxfp4"));
  expect_error("plan demo --experts nvfp3", "\"nvfp3\": want keep, bf16, fp8, mxfp4, nvfp4");
}

TEST_F(CliPlan, OptionsReachThePlan) {
  const Json official = json_of("plan --synthetic flash --gpus 2xh100");
  EXPECT_EQ(official.at("fits"), false);
  EXPECT_EQ(official.at("max_context_tokens"), 0);
  EXPECT_EQ(json_of("plan --synthetic flash --gpus 2xh100 --reserve 4").at("fits"), true);
  const Json mtp = json_of("plan --synthetic flash --mtp");
  EXPECT_EQ(mtp.at("weights_bytes"), 159609485896);
  EXPECT_EQ(mtp.at("tensors"), 69187);
  const Json divided = json_of("plan --synthetic flash --mtp --gpus 2xh200").at("ranks");
  for (const char* part : {"guesses_bytes", "draft_head_bytes"})
    EXPECT_GT(divided.at(1).at(part).get<int64_t>(), 0) << part;
  expect_error("plan --synthetic flash --dspark --mtp", "a model has one drafter");
  EXPECT_EQ(mtp.at("draft_head_bytes"), 129280 * 4096 / 32 * 17 + 64);
  const Json dspark = json_of("plan --synthetic flash --dspark");
  EXPECT_EQ(dspark.at("draft_head_bytes"), 0) << "it guesses for more rows than the copy is for";
  EXPECT_GT(dspark.at("tensors"), mtp.at("tensors"));
  EXPECT_GT(dspark.at("bytes_per_sequence"), mtp.at("bytes_per_sequence"));
  write("recipe.txt", "experts k2\nexperts.down k3\nshared_experts k4\n");
  const Json recipe = json_of("plan --synthetic flash --dense k5 --recipe " + path("recipe.txt"));
  for (const char* format : {"k2", "k3", "k4", "k5"})
    EXPECT_TRUE(recipe.at("formats").contains(format)) << format;
  EXPECT_GT(json_of("plan demo --batch 4").at("cache_bytes"),
            3 * json_of("plan demo").at("cache_bytes").get<int64_t>());
  EXPECT_GT(json_of("plan demo --numerics exact").at("kv_bytes_per_token"),
            json_of("plan demo").at("kv_bytes_per_token").get<double>() * 3);
}

// The plan itself is in expert_plan_test.
TEST_F(CliPlan, ExpertsInHostMemory) {
  const std::string flash = "plan --synthetic flash --gpus 1xh200 ";
  EXPECT_FALSE(json_of(flash).contains("experts_in_host_memory"));
  const Json all = json_of(flash + "--experts-memory auto --host-memory 200G");
  const Json& fit = all.at("experts_in_host_memory");
  EXPECT_NEAR(fit.at("resident_share"), 0.902, 0.0015);
  EXPECT_EQ(fit.at("host_bytes"), 11008 * fit.at("expert_bytes").get<int64_t>());
  EXPECT_LE(fit.at("gpu_need_bytes"), fit.at("gpu_room_bytes"));
  EXPECT_EQ(fit.at("host_room_bytes"), int64_t{200} << 30);
  const Json small = json_of(flash + "--experts-memory 20G --host-memory 200GiB");
  EXPECT_LE(small.at("experts_in_host_memory").at("gpu_bytes"), int64_t{20} << 30);
  const Json card = json_of(flash + "--gpu-memory 78G --experts-memory auto --host-memory 0.2T");
  EXPECT_NEAR(card.at("experts_in_host_memory").at("resident_share"), 0.4353, 0.0015);
  EXPECT_EQ(card.at("machines").at(0).at("device_bytes"), int64_t{78} << 30);
  const test::CliResult text = dsv4(flash + "--experts-memory auto --host-memory 130G");
  EXPECT_NE(text.out.find("have none and stay on the GPU"), std::string::npos);
  EXPECT_NE(text.out.find("at 49 GB/s (PCIe 5)"), std::string::npos);
  for (const char* size : {"0G", "-1G", "60", "60X", "nanG", "1e9T", ""})
    expect_error(flash + "--experts-memory '" + size + "'", "--experts-memory");
  expect_error(flash + "--host-memory 5G", "--experts-memory");
  expect_error("plan --synthetic flash --experts-memory auto", "for one GPU, not for cpu");
}

// What `plan` says, layer by layer.
TEST_F(CliPlan, InspectExperts) {
  const std::string sizes = "--experts-memory auto --host-memory 124G --json",
                    inspect = "inspect experts --synthetic flash ";
  const Json plan = json_of("plan --synthetic flash --gpus 1xh200 " + sizes);
  const Json experts = json_of(inspect + sizes);
  for (const auto& [key, value] : plan.at("experts_in_host_memory").items())
    EXPECT_EQ(experts.at(key), value) << key;
  int64_t kept = 0, fixed = 0, host = 0, gpu = 0;
  ASSERT_EQ(experts.at("layers").size(), 43u);
  for (const Json& layer : experts.at("layers")) {
    fixed += layer.at("fixed").get<int64_t>();
    kept += layer.at("fixed").get<int64_t>() + layer.at("slots").get<int64_t>();
    host += layer.at("host_bytes").get<int64_t>();
    gpu += layer.at("gpu_bytes").get<int64_t>();
    EXPECT_EQ(layer.at("homes").get<int64_t>() + layer.at("fixed").get<int64_t>(), 256);
  }
  EXPECT_GT(fixed, 0);
  EXPECT_EQ(experts.at("fixed"), fixed);
  EXPECT_EQ(experts.at("resident"), kept);
  EXPECT_EQ(experts.at("host_bytes"), host);
  const int64_t transient =
      experts.at("transient").get<int64_t>() * experts.at("expert_bytes").get<int64_t>();
  EXPECT_EQ(experts.at("gpu_bytes"), gpu + transient);
  const Json small = json_of(inspect + "--experts k3 --gpu-memory 78G --context 1000 " + sizes);
  EXPECT_LT(small.at("gpu_need_bytes"), int64_t{78} << 30);
  const test::CliResult text = dsv4(inspect + "--experts-memory 40G --host-memory 200G");
  EXPECT_NE(text.out.find("share 2 x "), std::string::npos) << text.out;
  expect_error("inspect experts demo", "needs --experts-memory");
  expect_error("inspect experts --experts-memory auto", "either a model or --synthetic");
  expect_error("inspect demo --experts-memory auto", "write inspect experts");
}

// The bundled model runs on any machine that can run this test.
TEST_F(CliPlan, DemoFitsHere) {
  const Json plan = json_of("plan demo");
  EXPECT_EQ(plan.at("machine"), "cpu");
  EXPECT_EQ(plan.at("fits"), true);
  EXPECT_EQ(plan.at("max_context_tokens"), 65536);
  EXPECT_EQ(json_of("plan demo --mtp").at("weights_bytes"),
            json_of("inspect demo").at("weights_bytes"));
}

TEST_F(CliPlan, FitsOnOneScreen) {
  for (const char* command : {"plan --synthetic pro --experts k2", "plan demo", "inspect demo"}) {
    const test::CliResult result = dsv4(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 50) << result.out;
  }
}

TEST_F(CliPlan, Errors) {
  expect_error("plan", "either a model or --synthetic");
  expect_error("plan demo --synthetic flash", "either a model or --synthetic");
  expect_error("plan --synthetic mini", "flash");
  expect_error("plan nowhere", "no model folder nowhere");
  expect_error("plan demo --gpus 3xb200", "no machine '3xb200': want cpu, or 1 to 64 of h100");
  expect_error("plan demo --context 65537", "exceeds the model's 65536 positions");
  expect_error("plan demo --context 0", "--context");
  expect_error("plan demo --reserve nan", "--reserve");
  expect_error("plan demo --experts k9", "k9");
  expect_error("plan demo --recipe " + path("none.txt"), "none.txt");
}

// A folder with a DSpark drafter.
TEST_F(CliPlan, InspectReadsDspark) {
  const test::TempFolder folder;
  const std::string config = test::tiny_dspark_json();
  const std::vector<NamedTensor> list =
      official_tensor_list(parse_config(config, "config.json"), true);
  test::write_zero_model(folder, list, config);
  const Json info = json_of("inspect " + folder.path());
  EXPECT_EQ(info.at("drafter"), "dspark");
  EXPECT_TRUE(info.at("skipped_drafter_tensors").empty());
  EXPECT_TRUE(info.at("unused_tensors").empty());
  EXPECT_TRUE(info.at("unknown_config_keys").empty());
  EXPECT_NE(dsv4("inspect " + folder.path()).out.find("3 stages, blocks of 5, sees layers 0, 2, 3"),
            std::string::npos);
  const Json plain = json_of("plan " + folder.path()),
             with = json_of("plan " + folder.path() + " --dspark");
  for (const char* key : {"weights_bytes", "cache_bytes", "bytes_per_sequence", "workspace_bytes"})
    EXPECT_GT(with.at(key), plain.at(key)) << key;
  EXPECT_EQ(with.at("weights_bytes"), info.at("weights_bytes"));
  expect_error("plan " + folder.path() + " --mtp", "has a DSpark drafter and no MTP block");
}

TEST_F(CliPlan, InspectReadsTheFullFlashLayout) {
  const std::string folder = path("flash");
  std::filesystem::create_directory(folder);
  test::write_sparse_checkpoint("flash", folder);
  const Json info = json_of("inspect " + folder);
  EXPECT_EQ(info.at("tensors"), 69187);
  EXPECT_EQ(info.at("weights_bytes"), 159609485896);
  EXPECT_EQ(info.at("schedule"), "2 x SWA+hash, CSA+hash, 20 x (HCA, CSA)");
  EXPECT_EQ(info.at("drafter"), "mtp");
  EXPECT_EQ(info.at("parts").at("mtp").at("tensors"), 1575);
  EXPECT_TRUE(info.at("skipped_drafter_tensors").empty());
  EXPECT_TRUE(info.at("unused_tensors").empty());
  EXPECT_TRUE(info.at("ledger").is_null());
  EXPECT_EQ(info.at("formats").at("mxfp4").at("tensors"), 2 * 3 * 256 * 44);
  EXPECT_EQ(info.at("formats").at("mxfp4").at("bits_per_weight"), 4.25);
  EXPECT_EQ(info.at("parts").at("experts").at("weights"), 277025390592);
  EXPECT_EQ(info.at("dtypes").at("I64").at("bytes"), 3 * 129280 * 6 * 8);
  EXPECT_NE(dsv4("inspect " + folder).out.find("one MTP block"), std::string::npos);
  // The plan of a release equals the plan of its checkpoint.
  EXPECT_EQ(json_of("plan " + folder + " --experts k3").at("weights_bytes"),
            json_of("plan --synthetic flash --experts k3").at("weights_bytes"));
}

TEST_F(CliPlan, InspectShowsTheLedger) {
  ASSERT_EQ(dsv4("quantize demo -o " + path("k3") + " --experts k3 --scales reference").exit_code,
            0);
  const Json info = json_of("inspect " + path("k3"));
  EXPECT_EQ(info.at("ledger").at("totals").at("experts").at("exact"), 0);
  EXPECT_NEAR(info.at("formats").at("k3").at("bits_per_weight"), 3.25, 0.02);
  EXPECT_NE(dsv4("inspect " + path("k3")).out.find("ledger"), std::string::npos);
  // The plan of the recipe equals the converted result.
  EXPECT_EQ(json_of("plan demo --experts k3 --mtp").at("weights_bytes"), info.at("weights_bytes"));
  EXPECT_EQ(json_of("plan " + path("k3") + " --mtp").at("weights_bytes"), info.at("weights_bytes"));
}

}  // namespace
}  // namespace dsv4
