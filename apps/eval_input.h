// Code that the eval commands share: the model, the text, and its split into windows.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common.h"
#include "apps/expert_options.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/model/model.h"
#include "dsv4/quality/windows.h"
#include "dsv4/text/tokenizer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

// How the model runs in an evaluation.
struct EvalMode {
  std::string device = "auto";
  ExpertsPlacement placement = ExpertsPlacement::kSliced;
  Numerics numerics = Numerics::kOfficial;
  bool deterministic = false, check_numbers = false;
  std::vector<ImplChoice> choices;
  ExpertOptions experts;
};
// Without device and observer; it reads `mode` as long as it is used.
Context step_context(const EvalMode& mode);
void add_eval_mode(CLI::App& command, EvalMode& mode);
// The model, on its device, for steps of so many tokens of sequences of so many. A device that
// cannot be used is rejected before anything is read.
Model load_eval_model(const EvalMode& mode, const std::string& model, int64_t context,
                      int64_t chunk);

struct EvalOptions : EvalMode {
  std::string model, file, ids;
  std::optional<int64_t> context, stride;
  int64_t chunk = 512;
  bool json = false;
};

// The context of an evaluation; with --check-numbers it has an observer.
class EvalContext {
 public:
  EvalContext(const EvalMode& mode, const Model& model);
  const Context& operator*() const { return context_; }

 private:
  std::unique_ptr<CheckNumbers> check_;
  Context context_;
};

// Throws unless the folder of `out` is there: to be called before a model is read.
void check_out(const std::string& out);
void add_eval_options(CLI::App& command, EvalOptions& options);
int64_t eval_context(const EvalOptions& options);  // tokens of a window, if the model has as many

// A text as tokens: from -f (with the tokenizer of the model's folder) or from --ids unchanged.
struct EvalText {
  std::string what;  // names the text in errors
  std::vector<int32_t> ids;
  std::optional<Tokenizer> tokenizer;  // with -f only
  std::string content;                 // with -f only
};
EvalText read_eval_text(const EvalOptions& options, const Model& model);

// Bytes of text of the counted tokens.
int64_t counted_bytes(const Tokenizer& tokenizer, std::span<const Window> windows);

// context: as requested, or 4096, limited to the fewest positions of the models.
WindowOptions window_options(const EvalOptions& options, std::span<const Model* const> models);

// "1.4313 +- 0.0096"; without the error where too few tokens were counted for one.
std::string with_error(double value, double error, int digits);

// Like split_windows(); throws kBadInput naming the text when nothing is left to count.
std::vector<Window> eval_windows(const EvalText& text, const WindowOptions& options);

// for_each_piece with a progress bar.
void read_pieces(std::span<const Window> windows, int32_t bos, int64_t chunk,
                 const std::function<void(const Piece&)>& on_piece);

}  // namespace dsv4::apps
