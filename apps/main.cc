// dsv4: run, measure and inspect DeepSeek-V4 models. Commands are in cmd_*.cc; this file parses,
// and is the only place where an Error becomes a line on stderr and an exit code.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "apps/commands.h"
#include "apps/version.h"
#include "dsv4/base/error.h"

namespace {

constexpr int kExitError = 1, kExitUsage = 2;

std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("dsv4: {} (see {} --help)\n", error.what(), app->get_display_name());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("dsv4: DeepSeek-V4 inference", "dsv4");
  app.set_version_flag("--version", dsv4::apps::version_text,
                       "Print the version and the build targets");
  app.require_subcommand(1);
  app.failure_message(usage_error);
  dsv4::apps::Action action;
  dsv4::apps::add_run(app, action);
  dsv4::apps::add_eval(app, action);
  dsv4::apps::add_inspect(app, action);
  dsv4::apps::add_quantize(app, action);
  dsv4::apps::add_plan(app, action);
  dsv4::apps::add_bench(app, action);
  dsv4::apps::add_serve(app, action);
  dsv4::apps::add_chat(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  try {
    action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      dsv4::fail(dsv4::ErrorCode::kIo, "cannot write to standard output");
    }
    return 0;
  } catch (const dsv4::apps::ExitStatus& exit) {
    return exit.status;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "dsv4: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dsv4: %s\n", error.what());
  }
  return kExitError;
}
