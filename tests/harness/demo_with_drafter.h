// The bundled model with an MTP block of random numbers, as a folder of its own: its guesses are
// bad, and no answer depends on them.

#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "dsv4/base/mapped_file.h"
#include "dsv4/loader/safetensors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/temp_folder.h"

namespace dsv4::test {

inline void write_demo_with_drafter(const TempFolder& folder) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator("models/demo")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "config.json")
      fs::create_symlink(fs::absolute(entry.path()), folder.file(name));
  }
  auto config = nlohmann::json::parse(read_text_file("models/demo/config.json"));
  config["num_nextn_predict_layers"] = 1;
  while (config["compress_ratios"].size() <= config["num_hidden_layers"])
    config["compress_ratios"].push_back(0);
  folder.write("config.json", config.dump());

  Rng rng(12);
  std::vector<Buffer> values;
  std::vector<std::pair<std::string, ConstTensorView>> tensors;
  nlohmann::json files;
  for (const NamedTensor& tensor :
       official_tensor_list(parse_config(config.dump(), "config"), true)) {
    const bool drafter = tensor.name.starts_with("mtp.");
    files[tensor.name] = drafter ? "mtp.safetensors" : "model.safetensors";
    if (!drafter) continue;
    values.emplace_back(tensor.meta.dtype, std::initializer_list<int64_t>{tensor.meta.numel()});
    const TensorView view(tensor.meta, values.back().view().data);
    fill_random(tensor.name, view, rng);
    tensors.emplace_back(tensor.name, view);
  }
  write_safetensors(folder.file("mtp.safetensors"), tensors);
  folder.write("model.safetensors.index.json", nlohmann::json({{"weight_map", files}}).dump());
}

}  // namespace dsv4::test
