// What several commands share: finding a model, options, reading ids, progress.

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
class Model;
class Tokenizer;
}  // namespace dsv4

namespace dsv4::apps {

// A folder is itself; `demo` is the bundled model: under $DSV4_MODELS, beside the build tree, or in
// the installation. Throws kBadInput saying where it looked.
std::string find_model(const std::string& model);

// --numerics official|exact
void add_numerics(CLI::App& command, Numerics& numerics);
// --device cpu|cuda[:N]
void add_device(CLI::App& command, std::string& device);
// The model of a folder where it is to run. A device that cannot be used is refused before anything
// is read.
Model load_model(const std::string& folder, const std::string& device);
// Its weights travel behind a progress bar. Refused before that when they and a cache of so many
// bytes do not fit the GPU. Null: the model stays on the host.
void place_model(Model& model, std::shared_ptr<Device> device, int64_t cache_bytes);

// A finite number in [low, high]; CLI::Range lets NaN through.
CLI::Validator number_in(double low, double high);

// "1,2,3" or "@file" (white space or commas). Throws kBadInput naming the word that is no id.
std::vector<int32_t> parse_ids(const std::string& text);

// What --experts, --dense and --recipe ask for, each may be empty; the file has the last word.
Recipe read_recipe(const std::string& experts, const std::string& dense, const std::string& file);

// "113.1 GiB", "18.4 MiB", "584 B"
std::string size_text(int64_t bytes);

// A tokenizer of another model would fail in the middle of the work.
void check_vocabulary(const Tokenizer& tokenizer, const Model& model);

// One line on stdout; numbers that are not finite become null.
void print_json(const nlohmann::json& report);

// A bar on stderr, only when stderr is a terminal and the work lasts over two seconds.
class Progress {
 public:
  // `unit` of what is counted, for the rate.
  Progress(std::string what, int64_t total, std::string unit = "tok");
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set_total(int64_t total) { total_ = total; }
  void skip(int64_t done);  // so much was there before: no part of the rate
  // `rates` stands in place of the rate of what is counted.
  void update(int64_t done, const std::string& rates = "");
  void finish();  // wipes the bar; nothing is drawn afterwards

 private:
  std::string what_, unit_;
  int64_t total_, skipped_ = 0;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point begin_, latest_;
};

}  // namespace dsv4::apps
