#include "apps/common.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/hub_models.h"
#include "apps/suggest.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/convert/recipe_codebooks.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/model/model.h"
#include "dsv4/ops/inspect.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFile = "/tokenizer.json";

// Folders that may hold bundled models, in order. The binary of a preset is build/PRESET/bin/dsv4;
// an installed one is PREFIX/bin/dsv4.
std::vector<fs::path> model_folders() {
  std::vector<fs::path> folders;
  if (const std::string folder = env("DSV4_MODELS"); !folder.empty()) folders.emplace_back(folder);
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return folders;
  folders.push_back(bin.parent_path().parent_path().parent_path() / "models");
  folders.push_back(bin.parent_path() / "share" / "dsv4" / "models");
  return folders;
}

}  // namespace

std::string find_model(const std::string& model) {
  std::error_code error;
  if (fs::is_directory(model, error)) {
    if (model == "demo")
      std::fprintf(stderr, "dsv4: note: demo is the folder ./demo here, not the bundled model\n");
    return model;
  }
  if (model != "demo") {
    if (fs::exists(model, error))
      fail(ErrorCode::kBadInput,
           "not a folder: {}: want a model folder (config.json, safetensors), or demo", model);
    if (const auto name = parse_hub_name(model)) return find_in_hub_cache(*name);
    fail(ErrorCode::kBadInput,
         "no model folder {}: want a model folder (config.json, safetensors), ORG/NAME, or demo{}",
         model, did_you_mean(model, {"demo"}));
  }
  std::string looked;
  for (const fs::path& folder : model_folders()) {
    if (fs::is_directory(folder / model, error)) return (folder / model).string();
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", (folder / model).string());
  }
  fail(ErrorCode::kBadInput,
       "the bundled model demo is not in {}; set DSV4_MODELS to its parent folder", looked);
}

void add_numerics(CLI::App& command, Numerics& numerics) {
  const auto set = [&numerics](const std::string& mode) {
    numerics = mode == "exact" ? Numerics::kExact : Numerics::kOfficial;
  };
  command
      .add_option_function<std::string>(
          "--numerics", set, "official: every rounding point of the released model; exact: f32")
      ->check(CLI::IsMember({"official", "exact"}))
      ->option_text("official|exact");
}

void add_deterministic(CLI::App& command, bool& deterministic) {
  command.add_flag("--deterministic", deterministic,
                   "use only implementations whose bits do not depend on the batch");
}

namespace {

// "moe=parts" with the names of the tables, which last. Throws CLI::ValidationError.
ImplChoice parse_choice(const std::string& text) {
  const size_t sign = text.find('=');
  const std::string_view op = std::string_view(text).substr(0, sign),
                         name = sign == text.npos ? "" : std::string_view(text).substr(sign + 1),
                         impl = current_impl_name(op, name);
  std::string found;
  for (const OpImpl& entry : all_op_impls()) {
    if (entry.op != op) continue;
    if (entry.impl == impl) return {entry.op, entry.impl};
    found += fmt::format("{}{}={}", found.empty() ? "" : ", ", entry.op, entry.impl);
  }
  throw CLI::ValidationError(
      "--impl", fmt::format("'{}' is not in the op table; {}", printable(text, kMaxQuote),
                            found.empty() ? "`dsv4 inspect ops` prints it" : "there is " + found));
}

}  // namespace

void add_choices(CLI::App& command, std::vector<ImplChoice>& choices) {
  const auto add = [&choices](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) choices.push_back(parse_choice(text));
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--impl", add, "implementation to try first for an op (see `dsv4 inspect ops`)")
      ->option_text("OP=IMPLEMENTATION ...")
      ->take_all()
      ->allow_extra_args(false);
}

void add_check_numbers(CLI::App& command, bool& check) {
  command.add_flag("--check-numbers", check,
                   "stop at the first op whose output holds NaN or infinity, and name it");
}

void add_device(CLI::App& command, std::string& device) {
  CLI::Option* one =
      command.add_option("--device", device, "device to run on; auto: a GPU where there is one")
          ->option_text("auto|cpu|cuda[:N] (auto)");
  const auto set = [&device](const std::string& gpus) { device = devices_of_gpus(gpus); };
  command
      .add_option_function<std::string>(
          "--gpus", set,
          "divide the model over ranks: a number of GPUs, all, or a list; for tests a GPU several "
          "times (0,0), or ranks on the CPU (cpu,cpu); processes: each process of torchrun, mpirun "
          "or srun is a rank, on the GPU of its local rank, of a list (processes:2,3) or on the "
          "CPU "
          "(processes:cpu)")
      ->option_text("N|all|LIST|processes[:LIST]")
      ->excludes(one);
  const auto exchange = [](const std::string& kind) {
    set_exchange_kind(kind == "nccl" ? ExchangeKind::kNccl : ExchangeKind::kPeer);
  };
  command
      .add_option_function<std::string>(
          "--exchange", exchange,
          "of --gpus processes: values go from GPU to GPU by stores, or by NCCL, where GPUs do not "
          "reach each other's memory")
      ->check(CLI::IsMember({"peer", "nccl"}))
      ->option_text("peer|nccl (peer)")
      ->needs("--gpus");
}

void add_placement(CLI::App& command, ExpertsPlacement& placement) {
  const auto set = [&placement](const std::string& text) {
    placement = text == "whole" ? ExpertsPlacement::kWhole : ExpertsPlacement::kSliced;
  };
  command
      .add_option_function<std::string>(
          "--experts-placement", set,
          "what each of several ranks has of the routed experts: rows of all of them, or some as a "
          "whole")
      ->check(CLI::IsMember({"sliced", "whole"}))
      ->option_text("sliced|whole (sliced)");
}

void place_model(Model& model, std::span<const std::shared_ptr<Device>> devices,
                 int64_t cache_bytes, const Context& steps,
                 const std::optional<ExpertMemory>& outside) {
  if (devices.front() == nullptr) return;
  place_others(model, cache_bytes, steps);
  Progress progress("loading weights", 0, "B");
  const auto show = [&](int64_t done, int64_t total) {
    progress.set_total(total);
    progress.update(done);
  };
  move_to_devices(model, devices, show, cache_bytes, steps, outside ? &*outside : nullptr);
  progress.finish();
}

CLI::Validator number_in(double low, double high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool whole = !text.empty() && *end == '\0';
    return whole && value >= low && value <= high
               ? ""
               : fmt::format("'{}' is not a number from {} to {}", printable(text, kMaxQuote), low,
                             high);
  };
  return CLI::Validator(check, fmt::format("[{}, {}]", low, high));
}

namespace {

// Replaces the text by the plain form of its number: CLI11 itself would read 010 as octal.
template <class Number>
CLI::Validator whole_number(Number low, Number high) {
  const auto check = [low, high](std::string& text) -> std::string {
    Number value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < low || value > high)
      return fmt::format("'{}' is not a whole number from {} to {}", printable(text, kMaxQuote),
                         low, high);
    text = fmt::format("{}", value);
    return "";
  };
  return CLI::Validator(check, "");
}

}  // namespace

CLI::Validator listen_address() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::string plain = text;
        if (plain.starts_with('[') && plain.ends_with(']'))
          plain = plain.substr(1, plain.size() - 2);
        in6_addr any{};
        if (plain != "localhost" && inet_pton(AF_INET, plain.c_str(), &any) != 1 &&
            inet_pton(AF_INET6, plain.c_str(), &any) != 1)
          return fmt::format("'{}' is not an IP address or localhost{}", printable(text, kMaxQuote),
                             did_you_mean(text, {"localhost"}));
        text = plain;
        return "";
      },
      "");
}

CLI::Validator integer_in(int64_t low, int64_t high) {
  return whole_number(low, high);
}

CLI::Validator seed_number() {
  return whole_number(uint64_t{0}, std::numeric_limits<uint64_t>::max());
}

std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::vector<int32_t> parse_ids(const std::string& text) {
  const bool from_file = !text.empty() && text[0] == '@';
  const std::string list = from_file ? read_input(text.substr(1)) : text;
  const std::string where = from_file ? input_name(text.substr(1)) : "--ids";
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size();) {
    const size_t begin = list.find_first_not_of(", \t\r\n", i);
    if (begin == std::string::npos) break;
    const size_t end = std::min(list.find_first_of(", \t\r\n", begin), list.size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(list.data() + begin, list.data() + end, id);
    if (error != std::errc() || stop != list.data() + end) {
      fail(ErrorCode::kBadInput, "{}: \"{}\" is not a token id", where,
           quotable(list.substr(begin, std::min<size_t>(end - begin, 20))));
    }
    ids.push_back(id);
    i = end;
  }
  if (ids.empty()) fail(ErrorCode::kBadInput, "{}: no token ids", where);
  return ids;
}

Recipe read_recipe(const std::string& experts, const std::string& dense, const std::string& file) {
  Recipe recipe = recipe_of_flags(experts, dense);
  if (!file.empty()) recipe.append(parse_recipe(read_text_file(file, size_t{2} << 20), file));
  read_codebooks(recipe);  // a missing codebook is an error for a plan as well
  return recipe;
}

SyntheticFormats read_formats(const std::string& experts, const std::string& dense,
                              const std::string& file) {
  const std::optional<WeightFormat> released = released_format(experts);
  if (!released) return read_recipe(experts, dense, file);
  return {read_recipe("", dense, file), *released};
}

std::string tokenizer_file(const std::string& folder) {
  std::string path = folder + kTokenizerFile;
  if (!is_present(path)) {
    if (const std::string config = folder + "/config.json"; !is_present(config))
      fail(ErrorCode::kBadInput, "{} is missing: {} is no model folder",
           printable(config, kMaxPath), printable(folder, kMaxPath));
    fail(ErrorCode::kBadInput,
         "{} is missing, and text needs it: copy it from the original checkpoint",
         printable(path, kMaxPath));
  }
  return path;
}

Tokenizer load_tokenizer(const std::string& folder) {
  return Tokenizer::load(tokenizer_file(folder));
}

std::optional<int32_t> check_tokenizer(const Model& model) {
  const std::string& folder = model.checkpoint().folder();
  if (!is_present(folder + kTokenizerFile)) return std::nullopt;
  const Tokenizer tokenizer = load_tokenizer(folder);
  check_vocabulary(tokenizer, model);
  return tokenizer.vocab_size();
}

void check_vocabulary(const Tokenizer& tokenizer, const Model& model) {
  if (tokenizer.vocab_size() > model.config().vocab_size) {
    fail(ErrorCode::kBadInput, "tokenizer.json has {} tokens, the model only {}",
         tokenizer.vocab_size(), model.config().vocab_size);
  }
}

void print_json(const nlohmann::json& report) {
  fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace dsv4::apps
