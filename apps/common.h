// Code that several commands share: finding a model, options, reading ids.

#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/progress.h"
#include "dsv4/comm/shard_id.h"
#include "dsv4/convert/recipe.h"
#include "dsv4/engine/expert_memory.h"
#include "dsv4/ops/op.h"
#include "dsv4/plan/synthetic.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace dsv4 {
class Device;
struct ModelConfig;
class ModelShard;
using Model = ModelShard;
class Tokenizer;
}  // namespace dsv4

namespace dsv4::apps {

constexpr size_t kMaxPath = 4096;  // bytes of a path in a message

// A folder stands for itself; `demo` is the bundled model: in $DSV4_MODELS, beside the build tree,
// or in the installation; ORG/NAME[@REVISION] is a model in the cache of Hugging Face. Throws
// kBadInput listing the folders that were searched, or with the command that fetches the model.
std::string find_model(const std::string& model);

// --numerics official|exact
void add_numerics(CLI::App& command, Numerics& numerics);
// --deterministic
void add_deterministic(CLI::App& command, bool& deterministic);
// --impl OP=IMPLEMENTATION, repeated
void add_choices(CLI::App& command, std::vector<ImplChoice>& choices);
// --check-numbers
void add_check_numbers(CLI::App& command, bool& check);
// --device auto|cpu|cuda[:N], and --gpus N|all|LIST; `device` as open_devices() takes it
void add_device(CLI::App& command, std::string& device);
// --experts-placement sliced|whole
void add_placement(CLI::App& command, ExpertsPlacement& placement);
// Copies the weights to the devices of the ranks, with a progress bar. Throws before copying when
// they and a cache of `cache_bytes` do not fit in GPU memory. Null: the model stays on the host.
// outside: as move_to_device()
void place_model(Model& model, std::span<const std::shared_ptr<Device>> devices,
                 int64_t cache_bytes, const Context& steps,
                 const std::optional<ExpertMemory>& outside = {});

// A finite number in [low, high]; CLI::Range accepts NaN.
CLI::Validator number_in(double low, double high);
// A decimal whole number in [low, high]; CLI::Range reports 1.5 as out of range.
CLI::Validator integer_in(int64_t low, int64_t high);
// An IP address or localhost; [::1] is ::1.
CLI::Validator listen_address();
// A whole number in [0, 2^64 - 1]; CLI11 would reduce a larger one modulo 2^64.
CLI::Validator seed_number();

// "1,2,3", "@file" or "@-", which is standard input (white space or commas). Throws kBadInput
// naming a word that is not an id.
std::vector<int32_t> parse_ids(const std::string& text);

// The recipe of --experts, --dense and --recipe, each may be empty; rules of the file come last.
Recipe read_recipe(const std::string& experts, const std::string& dense, const std::string& file);
// As read_recipe(), for a synthetic model: its experts may also be "mxfp4" or "nvfp4".
SyntheticFormats read_formats(const std::string& experts, const std::string& dense,
                              const std::string& file);

// How a text that an option or an argument named is called in errors and reports: "-" is standard
// input.
std::string input_name(const std::string& path);

// The tokenizer.json of a model's folder, for commands that read or write text. Throws kBadInput
// when the folder has none.
std::string tokenizer_file(const std::string& folder);
Tokenizer load_tokenizer(const std::string& folder);

// For commands that need weights only: the number of tokens, or none when the folder has no
// tokenizer.json. A tokenizer that `run` would reject is an error.
std::optional<int32_t> check_tokenizer(const Model& model);

// Rejects the tokenizer of another model, which would otherwise fail during the run.
void check_vocabulary(const Tokenizer& tokenizer, const Model& model);

// One line on stdout; numbers that are not finite become null.
void print_json(const nlohmann::json& report);

}  // namespace dsv4::apps
