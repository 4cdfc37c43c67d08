// The whole demo model under official numerics: every op call of the forward pass is compared with
// its fp64 oracle on the actual activations.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/mapped_file.h"
#include "tests/model/golden_files.h"
#include "tests/model/oracle_check.h"

namespace dsv4 {
namespace {

TEST(Official, EveryCallOfTheNetworkAgreesWithItsOracle) {
  const Model model = Model::load("models/demo");
  test::OracleCheck check;
  const Context context{.numerics = Numerics::kOfficial, .observer = &check};
  const auto golden =
      nlohmann::json::parse(read_text_file(test::kGoldenFolder + "demo/logits.json"));
  const auto ids = golden.at("ids").get<std::vector<int32_t>>();
  // 256 + 44 tokens: both HCA blocks and 75 CSA blocks close, and 75 entries are more than the
  // top 64.
  ASSERT_EQ(ids.size(), 300u);
  score(model, context, ids, 256, [](int64_t, const ConstTensorView&) {});

  const char* kOps[] = {
      "embed",        "rms_norm",    "head_norm",    "rope",         "quantize_q8",   "fake_quant",
      "hadamard",     "linear",      "hc_pre",       "hc_post",      "hc_head",       "kv_insert",
      "index_insert", "compressor",  "index_scores", "top_k",        "sparse_mla",    "router",
      "experts",      "hc_boundary", "attention_in", "index_select", "attention_out", "moe"};
  for (const char* op : kOps) {
    const auto found = check.records().find(op);
    ASSERT_NE(found, check.records().end()) << op << " was never called";
    const test::OpRecord& record = found->second;
    EXPECT_EQ(record.failures, 0) << op << ": " << record.first_failure;
  }
  EXPECT_EQ(check.records().size(), std::size(kOps));
}

}  // namespace
}  // namespace dsv4
