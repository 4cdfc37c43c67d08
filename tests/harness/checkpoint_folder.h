// A small checkpoint folder for the tests of the converter: random weights in any stored format.

#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/temp_folder.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

class TestSource {
 public:
  explicit TestSource(uint64_t seed = 1) : rng_(seed) {}

  // A weight in a stored format; F32 scales with `fp8_scale`.
  TestSource& weight(const std::string& prefix, WeightFormat format, int64_t n, int64_t k,
                     DType fp8_scale = DType::kE8M0) {
    const WeightView w = random_weight(arena_, rng_, {format}, n, k, fp8_scale);
    tensor(prefix + ".weight", w.data);
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    if (!w.scale.empty()) tensor(prefix + (nvfp4 ? ".weight_scale" : ".scale"), w.scale);
    if (nvfp4) {
      scalar(prefix + ".weight_scale_2", w.scale2);
      scalar(prefix + ".input_scale", 1.f);
    }
    return *this;
  }
  TestSource& tensor(const std::string& name, const ConstTensorView& view) {
    tensors_.emplace_back(name, view);
    return *this;
  }
  TestSource& scalar(const std::string& name, float value) {
    *buffers_.emplace_back(DType::kF32, std::initializer_list<int64_t>{}).as<float>() = value;
    return tensor(name, buffers_.back());
  }
  TensorView buffer(DType dtype, std::initializer_list<int64_t> shape) {
    return buffers_.emplace_back(dtype, shape);
  }
  Rng& rng() { return rng_; }

  // MODEL beside a config, a tokenizer and files that do not belong to the result.
  std::string write(const TempFolder& folder, const std::string& model = "source") const {
    const std::string path = folder.file(model);
    std::filesystem::create_directories(path);
    write_safetensors(path + "/model.safetensors", tensors_);
    write_file(path + "/config.json", read_text_file("tests/golden/hf/mixed/config.json"));
    write_file(path + "/tokenizer.json", "{}");
    write_file(path + "/README.md", "read me");
    write_file(path + "/hf_quant_config.json", "{}");
    return path;
  }

 private:
  Rng rng_;
  Arena arena_;
  std::deque<Buffer> buffers_;
  std::vector<std::pair<std::string, ConstTensorView>> tensors_;
};

// Every file of a folder by name, with its bytes.
inline std::map<std::string, std::string> folder_bytes(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    files[entry.path().filename().string()] = read_text_file(entry.path().string());
  return files;
}

}  // namespace dsv4::test
