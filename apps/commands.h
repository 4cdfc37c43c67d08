// The commands of the dsv4 program. Each adds itself to the command line and sets the action to
// run.

#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

using Action = std::function<void()>;

// Ends the program with this status and without a line.
struct ExitStatus {
  int status = 0;
};

// `action` is set by the chosen command; main() calls it after parsing.
void add_run(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);  // tokenize and detokenize
void add_pull(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);  // of all commands added before
void add_serve(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);

// Subcommands of `dsv4 bench`.
void add_bench_serve(CLI::App& bench, Action& action);
void add_bench_cache(CLI::App& bench, Action& action);
void add_bench_link(CLI::App& bench, Action& action);
void add_bench_exchange(CLI::App& bench, Action& action);

// Subcommands of `dsv4 eval`.
void add_eval_perplexity(CLI::App& eval, Action& action);
void add_eval_divergence(CLI::App& eval, Action& action);
void add_eval_needle(CLI::App& eval, Action& action);
void add_eval_imatrix(CLI::App& eval, Action& action);

}  // namespace dsv4::apps
