#include "apps/eval_input.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>

#include "apps/rank_process.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/model/batch.h"

namespace dsv4::apps {
namespace {

constexpr int64_t kDefaultContext = 4096;

}  // namespace

void add_eval_mode(CLI::App& command, EvalMode& mode) {
  add_numerics(command, mode.numerics);
  add_deterministic(command, mode.deterministic);
  add_choices(command, mode.choices);
  add_device(command, mode.device);
  add_placement(command, mode.placement);
  add_threads(command);
  add_check_numbers(command, mode.check_numbers);
  add_expert_options(command, mode.experts);
}

Model load_eval_model(const EvalMode& mode, const std::string& name, int64_t context,
                      int64_t chunk) {
  const std::string folder = find_model(name);
  check_expert_options(mode.experts, mode.device, mode.placement);
  const Devices devices = open_devices(mode.device);
  Model model = load_ranks(ModelSpec::load(folder, mode.placement), mode.device, devices);
  const int64_t tokens = std::min(context, model.config().max_positions),
                step = std::min(chunk, tokens);
  const CacheLimits limits{.max_tokens = tokens, .max_batch_tokens = step, .max_logits_rows = step};
  place_model(model, devices, 0, step_context(mode),
              expert_memory(mode.experts, model.config(), limits));
  return model;
}

void check_out(const std::string& out) {
  if (out.empty()) fail(ErrorCode::kBadInput, "-o '': want the name of a file");
  std::error_code none;
  const auto folder = std::filesystem::absolute(out, none).parent_path();
  if (!std::filesystem::is_directory(folder, none))
    fail(ErrorCode::kIo, "cannot write {}: no folder {}", out, folder.string());
}

void add_eval_options(CLI::App& command, EvalOptions& options) {
  command.add_option("model", options.model, "model folder, ORG/NAME, or demo")->required();
  CLI::Option* file =
      command.add_option("-f,--file", options.file, "text to read, - for standard input");
  command.add_option("--ids", options.ids, "token ids to read: 1,2,3, @file or @-")->excludes(file);
  command
      .add_option("--context", options.context,
                  "tokens per window; each window is a separate sequence")
      ->check(integer_in(2, 1 << 30))
      ->option_text(fmt::format("N ({} or the model's positions)", kDefaultContext));
  command
      .add_option("--stride", options.stride,
                  "tokens from window to window; the overlap is context only, not counted again")
      ->check(integer_in(1, 1 << 30))
      ->option_text("N (no overlap)");
  command.add_option("--chunk", options.chunk, "tokens per step")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  add_eval_mode(command, options);
  command.add_flag("--json", options.json, "print a report on stdout");
}

int64_t eval_context(const EvalOptions& options) {
  return options.context.value_or(kDefaultContext);
}

Context step_context(const EvalMode& mode) {
  return {.numerics = mode.numerics,
          .need_batch_invariant = mode.deterministic,
          .choices = mode.choices};
}

EvalContext::EvalContext(const EvalMode& mode, const Model& model)
    : check_(mode.check_numbers ? std::make_unique<CheckNumbers>(model) : nullptr),
      context_(step_context(mode)) {
  context_.observer = check_.get();
}

EvalText read_eval_text(const EvalOptions& options, const Model& model) {
  EvalText text;
  if (!options.file.empty()) {
    text.what = input_name(options.file);
    text.content = read_input(options.file);
    if (text.content.empty()) fail(ErrorCode::kBadInput, "{}: the text is empty", text.what);
    text.tokenizer.emplace(load_tokenizer(model.checkpoint().folder()));
    check_vocabulary(*text.tokenizer, model);
    text.ids = text.tokenizer->encode(text.content);
  } else if (!options.ids.empty()) {
    text.what = "--ids";
    text.ids = parse_ids(options.ids);
  } else {
    fail(ErrorCode::kBadInput, "no input: give a text with -f FILE or token ids with --ids");
  }
  check_token_ids(text.ids, model.config().vocab_size);
  return text;
}

int64_t counted_bytes(const Tokenizer& tokenizer, std::span<const Window> windows) {
  int64_t bytes = 0;
  for (const Window& window : windows) {
    for (const int32_t id : window.text.subspan(static_cast<size_t>(window.skip)))
      bytes += static_cast<int64_t>(tokenizer.token_bytes(id).size());
  }
  return bytes;
}

WindowOptions window_options(const EvalOptions& options, std::span<const Model* const> models) {
  int64_t context = kDefaultContext;
  for (const Model* model : models) context = std::min(context, model->config().max_positions);
  return {.context = options.context.value_or(context),
          .stride = options.stride.value_or(0),
          .bos = models.front()->config().bos};
}

std::string with_error(double value, double error, int digits) {
  const std::string text = fmt::format("{:.{}g}", value, digits);
  return std::isfinite(error) ? fmt::format("{} +- {:.2g}", text, error) : text;
}

std::vector<Window> eval_windows(const EvalText& text, const WindowOptions& options) {
  std::vector<Window> windows = split_windows(text.ids, options);
  if (windows.empty()) {
    fail(ErrorCode::kBadInput, "{}: no token to predict in a text of {}: want at least {}",
         text.what, text.ids.size(), options.bos >= 0 ? "one besides BOS" : "two");
  }
  return windows;
}

void read_pieces(std::span<const Window> windows, int32_t bos, int64_t chunk,
                 const std::function<void(const Piece&)>& on_piece) {
  int64_t total = 0, done = 0;
  for (const Window& window : windows)
    total += static_cast<int64_t>(window.text.size()) - (bos >= 0 ? 0 : 1);
  Progress progress("evaluating", total);
  for_each_piece(windows, bos, chunk, [&](const Piece& piece) {
    on_piece(piece);
    progress.update(done += static_cast<int64_t>(piece.ids.size()));
  });
}

}  // namespace dsv4::apps
