#include "dsv4/convert/side_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/convert/ledger.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/weight.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr uintmax_t kLargest = uintmax_t{64} << 20;
constexpr std::string_view kLeftOut[] = {"config.json", "model.safetensors.index.json",
                                         "hf_quant_config.json", "README.md", kLedgerFile};
constexpr std::string_view kWeightFiles[] = {".safetensors", ".bin", ".pt",  ".pth",
                                             ".gguf",        ".npz", ".tmp", ".incomplete"};

// Links are followed for these only.
constexpr std::string_view kLinked[] = {"tokenizer.json",          "tokenizer_config.json",
                                        "generation_config.json",  "chat_template.jinja",
                                        "special_tokens_map.json", "LICENSE"};

bool may_be_read(const fs::directory_entry& entry, std::string_view file) {
  std::error_code error;
  return !entry.is_symlink(error) || std::count(std::begin(kLinked), std::end(kLinked), file) != 0;
}

bool is_side_file(const fs::directory_entry& entry) {
  std::error_code error;
  const std::string file = entry.path().filename().string();
  const std::string extension = entry.path().extension().string();
  return entry.is_regular_file(error) && entry.file_size(error) <= kLargest && file[0] != '.' &&
         may_be_read(entry, file) &&
         std::count(std::begin(kLeftOut), std::end(kLeftOut), file) == 0 &&
         std::count(std::begin(kWeightFiles), std::end(kWeightFiles), extension) == 0;
}

bool is_float(WeightFormat format) {
  return format == WeightFormat::kF32 || format == WeightFormat::kBF16 ||
         format == WeightFormat::kF16;
}

// The FP4 format of all weights that are not floats; kKeep when there is none, or more than that.
Target::Kind only_fp4(const ConvertList& list) {
  Target::Kind kind = Target::Kind::kKeep;
  for (const OutputItem& item : list.items) {
    if (!item.is_weight) continue;
    if (item.target.kind == Target::Kind::kBF16) continue;
    if (!item.converted() && is_float(item.source)) continue;
    if (!is_fp4(item.target)) return Target::Kind::kKeep;
    if (kind != Target::Kind::kKeep && kind != item.target.kind) return Target::Kind::kKeep;
    kind = item.target.kind;
  }
  return kind;
}

// The keys and values that compressed-tensors has for its schemes MXFP4A16 and NVFP4A16.
OrderedJson compressed_tensors_config(const ConvertList& list, bool mx) {
  const char* format = mx ? "mxfp4-pack-quantized" : "nvfp4-pack-quantized";
  const char* scale = mx ? "torch.uint8" : "torch.float8_e4m3fn";
  OrderedJson ignore = OrderedJson::array();
  for (const OutputItem& item : list.items)
    if (item.is_weight && !is_fp4(item.target)) ignore.push_back(item.name);
  const OrderedJson weights = {{"num_bits", 4},
                               {"type", "float"},
                               {"symmetric", true},
                               {"group_size", mx ? kMxfp4Group : kNvfp4Group},
                               {"strategy", mx ? "group" : "tensor_group"},
                               {"dynamic", false},
                               {"scale_dtype", scale},
                               {"zp_dtype", scale}};
  OrderedJson group;
  group["targets"] = OrderedJson::array({"Linear"});
  group["format"] = format;
  group["weights"] = weights;
  group["input_activations"] = nullptr;
  group["output_activations"] = nullptr;
  OrderedJson config;
  config["quant_method"] = "compressed-tensors";
  config["format"] = format;
  config["quantization_status"] = "compressed";
  config["config_groups"]["group_0"] = group;
  config["ignore"] = ignore;
  return config;
}

}  // namespace

std::string converted_config(const std::string& source_config, const Recipe& recipe,
                             const ConvertList& list, const std::string& what) {
  OrderedJson config;
  try {
    config = OrderedJson::parse(source_config);
  } catch (const OrderedJson::exception&) {
    fail(ErrorCode::kBadInput, "{}: not valid JSON", what);
  }
  if (!config.is_object()) fail(ErrorCode::kBadInput, "{}: not an object", what);
  const OrderedJson source =
      config.contains("quantization_config") ? config["quantization_config"] : OrderedJson();
  const Target::Kind fp4 = only_fp4(list);
  if (fp4 != Target::Kind::kKeep) {
    config["quantization_config"] = compressed_tensors_config(list, fp4 == Target::Kind::kMxfp4);
  } else {
    config["quantization_config"] = {{"quant_method", "kbit"},
                                     {"block_size", kKbitBlock},
                                     {"scale_format", "e4m4"},
                                     {"recipe", recipe.text},
                                     {"source", source}};
  }
  return config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::vector<std::string> copy_side_files(const std::string& source, const std::string& target) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(source, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!is_side_file(*entry)) continue;
    const fs::path to = fs::path(target) / entry->path().filename();
    std::error_code copied;
    fs::copy_file(entry->path(), to, fs::copy_options::overwrite_existing, copied);
    if (copied)
      fail(ErrorCode::kIo, "cannot copy {} to {}: {}", entry->path().string(), to.string(),
           copied.message());
    names.push_back(entry->path().filename().string());
  }
  if (error) fail(ErrorCode::kIo, "cannot read folder {}: {}", source, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dsv4
