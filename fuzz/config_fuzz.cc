// config.json, in both spellings.

#include "dsv4/model/schedule.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::ModelConfig config = dsv4::parse_config(dsv4::fuzz::text(data, size), "input");
    dsv4::fuzz::require(static_cast<int64_t>(dsv4::layer_schedule(config).size()) ==
                        config.num_layers);
    dsv4::fuzz::require(config.rope_dim % 2 == 0 && config.rope_dim <= config.head_dim);
  });
  return 0;
}
