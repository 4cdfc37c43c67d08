// dsv4 tokenize MODEL [-p TEXT | -f FILE] and dsv4 detokenize MODEL [--ids 1,2,3]: text to ids and
// back, as `run` and `eval` do it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/text/tokenizer.h"
#include "dsv4/text/utf8.h"

namespace dsv4::apps {
namespace {

struct TokenizeOptions {
  std::string model, file = "-", ids = "@-";
  std::optional<std::string> text;
  bool json = false, skip_special = false;
};

Tokenizer tokenizer_of(const std::string& model) {
  return load_tokenizer(find_model(model));
}

void tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = tokenizer_of(options.model);
  const std::string text = options.text ? *options.text : read_input(options.file);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  if (!options.json) return fmt::print("{}\n", fmt::join(ids, " "));
  auto pieces = nlohmann::ordered_json::array();
  for (const int32_t id : ids) pieces.push_back(std::string(tokenizer.token_bytes(id)));
  fmt::print("{}\n", dump({{"ids", ids}, {"pieces", pieces}}));
}

void detokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = tokenizer_of(options.model);
  const std::vector<int32_t> ids = parse_ids(options.ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size())
      fail(ErrorCode::kBadInput, "token id {} at position {} is outside [0, {})", ids[i], i,
           tokenizer.vocab_size());
  }
  const std::string bytes = tokenizer.decode(ids, options.skip_special);
  if (options.json) return fmt::print("{}\n", dump({{"text", utf8_lossy(bytes)}}));
  // Exactly the bytes, so that `tokenize | detokenize` gives the file again.
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size())
    fail(ErrorCode::kIo, "cannot write to standard output");
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Text to token ids");
  command->footer("Example: echo 'Once upon a time' | dsv4 tokenize demo");
  command->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  CLI::Option* text = command->add_option_function<std::string>(
      "-p,--prompt", [options](const std::string& given) { options->text = given; }, "text");
  command->add_option("-f,--file", options->file, "file with the text (default: standard input)")
      ->excludes(text);
  command->add_flag("--json", options->json, "print ids and the bytes of each as a JSON object");
  command->callback([options, &action] { action = [options] { tokenize(*options); }; });

  CLI::App* back = app.add_subcommand("detokenize", "Token ids to text");
  back->footer("Example: dsv4 detokenize demo --ids 0,17,42");
  back->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  back->add_option("--ids", options->ids, "1,2,3, @file or @- (default: standard input)");
  back->add_flag("--skip-special", options->skip_special, "leave out special tokens");
  back->add_flag("--json", options->json, "print a JSON object");
  back->callback([options, &action] { action = [options] { detokenize(*options); }; });
}

}  // namespace dsv4::apps
