// Code that several commands share: finding a model, options, reading ids, progress.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dsv4/convert/recipe.h"
#include "dsv4/ops/op.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace dsv4 {
class Device;
class ModelShard;
using Model = ModelShard;
class Tokenizer;
}  // namespace dsv4

namespace dsv4::apps {

// A folder stands for itself; `demo` is the bundled model: in $DSV4_MODELS, beside the build tree,
// or in the installation. Throws kBadInput listing the folders that were searched.
std::string find_model(const std::string& model);

// --numerics official|exact
void add_numerics(CLI::App& command, Numerics& numerics);
// --device cpu|cuda[:N]
void add_device(CLI::App& command, std::string& device);
// The model of a folder, to run on `device`. A device that cannot be used is rejected before
// anything is read.
Model load_model(const std::string& folder, const std::string& device);
// Copies the weights to the device, with a progress bar. Throws before copying when they and a
// cache of `cache_bytes` do not fit in GPU memory. Null: the model stays on the host.
void place_model(Model& model, std::shared_ptr<Device> device, int64_t cache_bytes);

// A finite number in [low, high]; CLI::Range accepts NaN.
CLI::Validator number_in(double low, double high);

// "1,2,3" or "@file" (white space or commas). Throws kBadInput naming a word that is not an id.
std::vector<int32_t> parse_ids(const std::string& text);

// The recipe of --experts, --dense and --recipe, each may be empty; rules of the file come last.
Recipe read_recipe(const std::string& experts, const std::string& dense, const std::string& file);

// "113.1 GiB", "18.4 MiB", "584 B"
std::string size_text(int64_t bytes);

// Rejects the tokenizer of another model, which would otherwise fail during the run.
void check_vocabulary(const Tokenizer& tokenizer, const Model& model);

// One line on stdout; numbers that are not finite become null.
void print_json(const nlohmann::json& report);

// A bar on stderr, only when stderr is a terminal and the work lasts over two seconds.
class Progress {
 public:
  // `unit` is that of the counted things, for the rate.
  Progress(std::string what, int64_t total, std::string unit = "tok");
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set_total(int64_t total) { total_ = total; }
  void skip(int64_t done);  // already done before: excluded from the rate
  // `rates` is printed instead of the rate of the counted unit.
  void update(int64_t done, const std::string& rates = "");
  void finish();  // clears the bar; nothing is drawn afterwards

 private:
  std::string what_, unit_;
  int64_t total_, skipped_ = 0;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point begin_, latest_;
};

}  // namespace dsv4::apps
