// dsv4 eval kld MODEL --reference REF: the divergence of a model from a reference.
//
// REF is a model folder, which runs alongside, or a file of logits (quality/reference_file.h).

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/eval_input.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/convert/ledger.h"
#include "dsv4/quality/divergence.h"
#include "dsv4/quality/reference_file.h"

namespace dsv4::apps {
namespace {

struct DivergenceOptions : EvalOptions {
  std::string reference, save_reference;
  bool record = false;
};

// The reference, and the input of both models.
struct EvalInput {
  std::optional<Model> reference_model;
  std::optional<EvalContext> reference_context;
  std::unique_ptr<LogitsSource> reference;
  EvalText text;
  WindowOptions how;
};

void check_vocab(const DivergenceOptions& options, const Model& model, int64_t reference) {
  if (reference != model.config().vocab_size) {
    fail(ErrorCode::kBadInput,
         "the vocabulary of {} has {} tokens, that of the reference {} has {}", options.model,
         model.config().vocab_size, options.reference, reference);
  }
}

// A file fixes the text and the windows; options may repeat them but not contradict them.
void check_same(const EvalOptions& options, const ReferenceFile& file, const Model& model) {
  const auto reject = [&](const std::string& what) {
    fail(ErrorCode::kBadInput, "{}: the reference was made with {}", options.file, what);
  };
  const WindowOptions& how = file.options();
  if (options.context.value_or(how.context) != how.context)
    reject(fmt::format("--context {}", how.context));
  if (options.stride.value_or(stride_of(how)) != stride_of(how))
    reject(fmt::format("--stride {}", stride_of(how)));
  if (options.file.empty() && options.ids.empty()) return;
  const EvalText text = read_eval_text(options, model);
  if (!std::equal(text.ids.begin(), text.ids.end(), file.ids().begin(), file.ids().end()))
    reject("a different text or tokenizer");
}

EvalInput open_file(const DivergenceOptions& options, const Model& model) {
  EvalInput input;
  auto file = std::make_unique<ReferenceFile>(options.reference);
  check_vocab(options, model, file->vocab());
  check_same(options, *file, model);
  if (!file->numerics().empty() && file->numerics() != name(options.numerics)) {
    fmt::print(stderr, "dsv4: note: the reference ran in {} numerics, the model runs in {}\n",
               quotable(file->numerics()), name(options.numerics));
  }
  input.how = file->options();
  input.text = {.what = options.reference, .ids = {file->ids().begin(), file->ids().end()}};
  input.reference = std::move(file);
  return input;
}

// Both tokenizers must map the text to the same ids.
void check_tokenizer(const EvalText& text, const EvalOptions& options, const Model& reference) {
  const std::string path = reference.checkpoint().folder() + "/tokenizer.json";
  if (!text.tokenizer || !is_present(path)) return;
  if (Tokenizer::load(path).encode(text.content) != text.ids) {
    fail(ErrorCode::kBadInput, "{}: the tokenizer of the reference {} gives different tokens",
         options.file, reference.checkpoint().folder());
  }
}

EvalInput open_model(const DivergenceOptions& options, const Model& model) {
  EvalInput input;
  input.reference_model.emplace(
      load_eval_model(options, options.reference, eval_context(options), options.chunk));
  const Model& reference = *input.reference_model;
  check_vocab(options, model, reference.config().vocab_size);
  input.text = read_eval_text(options, model);
  check_tokenizer(input.text, options, reference);
  const Model* const models[] = {&model, &reference};
  input.how = window_options(options, models);
  input.reference_context.emplace(options, reference);
  input.reference =
      std::make_unique<ModelLogits>(reference, **input.reference_context, input.how, options.chunk);
  return input;
}

nlohmann::json report_of(const Divergence& d) {
  return {{"tokens", d.tokens},
          {"kld",
           {{"mean", d.mean},
            {"mean_error", d.mean_error},
            {"median", d.median},
            {"p99", d.q99},
            {"p99_9", d.q999},
            {"max", d.max}}},
          {"top1", d.top1},
          {"perplexity", d.model.value},
          {"perplexity_error", d.model.error},
          {"reference_perplexity", d.reference.value},
          {"reference_perplexity_error", d.reference.error},
          {"perplexity_ratio", d.ratio},
          {"perplexity_ratio_error", d.ratio_error}};
}

void print(const Divergence& d) {
  fmt::print("KL divergence  mean {} nats per token\n", with_error(d.mean, d.mean_error, 6));
  fmt::print("               median {:.4g}, 99 % {:.4g}, 99.9 % {:.4g}, max {:.4g}\n", d.median,
             d.q99, d.q999, d.max);
  fmt::print("same top-1     {:.3f} %\n", 100 * d.top1);
  fmt::print("perplexity     {}, reference {}\n", with_error(d.model.value, d.model.error, 5),
             with_error(d.reference.value, d.reference.error, 5));
  fmt::print("ratio          {}\n", with_error(d.ratio, d.ratio_error, 7));
}

void compare(const DivergenceOptions& options, const Model& model) {
  const auto begin = std::chrono::steady_clock::now();
  std::error_code error;
  const bool folder = std::filesystem::is_directory(options.reference, error);
  if (!folder && options.reference != "demo" && !std::filesystem::exists(options.reference, error))
    fail(ErrorCode::kBadInput, "no reference {}: want a model folder, or a file of logits",
         options.reference);
  const EvalInput input = std::filesystem::is_regular_file(options.reference, error)
                              ? open_file(options, model)
                              : open_model(options, model);
  const std::vector<Window> windows = eval_windows(input.text, input.how);
  const EvalContext context(options, model);
  ModelLogits logits(model, *context, input.how, options.chunk);
  DivergenceMeter meter(options.reference, options.model);
  read_pieces(windows, input.how.bos, options.chunk, [&](const Piece& piece) {
    const ConstTensorView reference = input.reference->next(piece);
    meter.add(reference, logits.next(piece), piece);
  });
  const Divergence result = meter.result();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  nlohmann::json report = report_of(result);
  report.update({{"reference", options.reference},
                 {"windows", windows.size()},
                 {"context", input.how.context},
                 {"stride", stride_of(input.how)},
                 {"numerics", name(options.numerics)},
                 {"seconds", spent.count()}});
  if (options.json) {
    print_json(report);
  } else {
    print(result);
    fmt::print("tokens         {} in {} windows of up to {}, stride {}, {} numerics, {:.1f} s\n",
               result.tokens, windows.size(), input.how.context, stride_of(input.how),
               name(options.numerics), spent.count());
  }
  if (!options.record) return;
  std::fflush(stdout);      // the numbers are out, whatever happens to the ledger
  report.erase("seconds");  // depends on the machine, and the ledger must not
  report["kind"] = "kld";
  report["text"] = input.text.what;
  append_eval(model.checkpoint().folder(), report);
}

void save_reference(const DivergenceOptions& options, const Model& model) {
  const EvalText text = read_eval_text(options, model);
  const Model* const models[] = {&model};
  const WindowOptions how = window_options(options, models);
  const std::vector<Window> windows = eval_windows(text, how);
  const int64_t rows = num_counted(windows), vocab = model.config().vocab_size;
  ReferenceWriter writer(options.save_reference, text.ids, how, rows, vocab,
                         name(options.numerics));
  const EvalContext context(options, model);
  ModelLogits logits(model, *context, how, options.chunk);
  PerplexityMeter meter(options.model);  // also rejects non-finite logits
  read_pieces(windows, how.bos, options.chunk, [&](const Piece& piece) {
    const ConstTensorView rows_of_piece = logits.next(piece);
    meter.add(rows_of_piece, piece);
    if (!piece.targets.empty()) writer.add(rows_of_piece);
  });
  writer.finish();
  const Perplexity result = meter.result();
  const nlohmann::json report = {
      {"saved", options.save_reference},  {"tokens", rows},
      {"bytes_per_token", 4 * vocab},     {"perplexity", result.value},
      {"perplexity_error", result.error}, {"numerics", name(options.numerics)}};
  if (options.json) return print_json(report);
  fmt::print("saved          {}: {} tokens of {} bytes, perplexity {}\n", options.save_reference,
             rows, 4 * vocab, with_error(result.value, result.error, 5));
}

void eval_divergence(const DivergenceOptions& options) {
  if (options.record) check_ledger_can_be_extended(find_model(options.model));
  const Model model = load_eval_model(options, options.model, eval_context(options), options.chunk);
  options.save_reference.empty() ? compare(options, model) : save_reference(options, model);
}

}  // namespace

void add_eval_divergence(CLI::App& eval, Action& action) {
  CLI::App* command = eval.add_subcommand("kld", "KL divergence from a reference model");
  command->footer(
      "Example: dsv4 eval kld k3/ --reference demo -f text.txt\n"
      "         dsv4 eval kld big/ --save-reference big.logits -f text.txt\n"
      "         dsv4 eval kld k3/ --reference big.logits");
  auto options = std::make_shared<DivergenceOptions>();
  add_eval_options(*command, *options);
  CLI::Option_group* how = command->add_option_group("reference");
  how->add_option("--reference", options->reference,
                  "model folder, or a file of logits (-f and --ids are then optional)");
  how->add_option(
      "--save-reference", options->save_reference,
      "write MODEL's own logits to a file, 4 bytes times the vocabulary size per token");
  how->require_option(1);
  command->add_flag("--record", options->record,
                    "append the result to the quantization ledger of MODEL");
  command->callback([options, &action] { action = [options] { eval_divergence(*options); }; });
}

}  // namespace dsv4::apps
