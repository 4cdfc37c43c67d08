// A failing kernel destroys the CUDA context. The engine must report that once and clearly, and
// reject further work. This is a separate program: nothing else can use the GPU afterwards.

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "tests/device/test_kernels.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

struct Silent : TokenSink {
  void on_token(RequestId, const Sampled&) override {}
  void on_finish(RequestId, Finish) override {}
};

TEST(StickyError, EngineRejectsFurtherWork) {
  if (list_devices().empty()) GTEST_SKIP() << "no GPU";
  const std::shared_ptr<Device> device = open_device("cuda");
  Model model = Model::load("models/demo");
  move_to_device(model, device, [](int64_t, int64_t) {});
  Engine engine(model, {.max_tokens = 64});
  Silent sink;
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  engine.submit(prompt, {.max_new_tokens = 20}, sink);
  ASSERT_TRUE(engine.step());
  test::kill_device(*device);
  const std::string died = test::error_of(ErrorCode::kUnsupported, [&] {
    while (engine.step()) continue;
  });
  EXPECT_NE(died.find("launch failure"), std::string::npos) << died;
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kUnsupported, [&] { engine.step(); }),
                         "an earlier step failed"));
  EXPECT_THROW(device->wait(), Error);
  EXPECT_THROW(device->memory().allocate(16), Error);
}

}  // namespace
}  // namespace dsv4
