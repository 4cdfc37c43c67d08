// dsv4 pull ORG/NAME[@REVISION]: fetches a model of Hugging Face's hub into the cache that
// huggingface_hub uses as well, and prints its folder.

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/hub_models.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/size_text.h"
#include "dsv4/hub/download.h"
#include "dsv4/hub/hub_cache.h"
#include "dsv4/hub/hub_model.h"
#include "dsv4/hub/hub_settings.h"

namespace dsv4::apps {
namespace {

struct PullOptions {
  std::string model;
  bool all = false, offline = false;
  int connections = HubDownload().connections, tries = HubPolicy().tries,
      timeout_s = HubPolicy().timeout_s;
};

int64_t total_size(const std::vector<HubFile>& files) {
  int64_t bytes = 0;
  for (const HubFile& file : files) bytes += file.size;
  return bytes;
}

// Without --all, weights in formats that dsv4 does not read are left out where there are others.
std::vector<HubFile> wanted_files(const HubModel& model, bool all) {
  std::vector<HubFile> wanted, other;
  bool safetensors = false;
  for (const HubFile& file : model.files()) {
    safetensors |= file.path.ends_with(".safetensors");
    (is_other_format(file.path) ? other : wanted).push_back(file);
  }
  if (all || !safetensors || other.empty()) return model.files();
  print_notice(
      fmt::format("note: {} files in other formats ({}) are left out, such as {}: --all "
                  "fetches them too",
                  other.size(), size_text(total_size(other)), other[0].path));
  return wanted;
}

// The rate and the bar. What an earlier run left counts as done before the first update.
class PullProgress {
 public:
  void update(int64_t done, int64_t total) {
    if (!progress_) {
      progress_.emplace("fetching", total, "B");
      progress_->skip(first_ = done);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    const double rate = static_cast<double>(done - first_) / std::max(spent.count(), 1e-3);
    progress_->update(done, size_text(static_cast<int64_t>(std::max(rate, 0.))) + "/s");
  }

 private:
  std::optional<Progress> progress_;
  int64_t first_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The folder of the snapshot.
std::string fetch_model(const PullOptions& options, const HubName& name, const HubCache& cache) {
  HubPolicy policy = hub_policy();
  policy.tries = options.tries;
  policy.timeout_s = options.timeout_s;
  const HubModel model(name, policy, print_notice);
  const std::vector<HubFile> files = wanted_files(model, options.all);
  cache.make_folders();
  const int64_t missing = bytes_to_allocate(cache, files);
  print_notice(fmt::format("{} is commit {}: {} files, {}, {} to fetch", name.text(),
                           model.commit().substr(0, 10), files.size(), size_text(total_size(files)),
                           size_text(missing)));
  check_free_space(cache, files);
  PullProgress progress;
  fetch_blobs({.policy = policy,
               .url = model.file_url(),
               .connections = options.connections,
               .notice = print_notice,
               .progress = [&](int64_t done, int64_t total) { progress.update(done, total); }},
              cache, files);
  cache.publish(model.commit(), files);
  return cache.snapshot(model.commit());
}

void pull(const PullOptions& options) {
  const std::optional<HubName> name = parse_hub_name(options.model);
  if (!name)
    fail(ErrorCode::kBadInput, "'{}' is no name of the hub: want ORG/NAME or ORG/NAME@REVISION",
         quotable(options.model));
  const std::string root = hub_cache_folder();
  if (root.empty()) fail(ErrorCode::kBadInput, "no folder for the cache: set HF_HUB_CACHE");
  const HubCache cache(root, *name);
  std::string folder;
  if (options.offline || hub_is_offline()) {
    folder = cache.find();
    if (folder.empty())
      fail(ErrorCode::kBadInput, "{} is not in {}, and nothing is fetched offline", name->text(),
           root);
    if (const std::string missing = missing_in(folder); !missing.empty())
      fail(ErrorCode::kBadInput, "{} lacks {}, and nothing is fetched offline", folder, missing);
  } else {
    folder = fetch_model(options, *name, cache);
    if (const std::string missing = missing_in(folder); !missing.empty())
      print_notice(fmt::format("note: {} has no {}: dsv4 cannot run it", name->text(), missing));
  }
  fmt::print("{}\n", folder);
}

}  // namespace

void add_pull(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("pull", "Fetch a model of Hugging Face's hub into its cache");
  command->footer(
      "Example: dsv4 pull deepseek-ai/DeepSeek-V4-Flash\n"
      "         dsv4 serve deepseek-ai/DeepSeek-V4-Flash\n"
      "Prints the folder. An interrupted pull continues where it was. `dsv4 plan ORG/NAME` says "
      "whether a model fits before it is fetched. docs/pull.md has the environment variables.");
  auto options = std::make_shared<PullOptions>();
  command
      ->add_option("model", options->model, "ORG/NAME, or ORG/NAME@ with a branch, tag or commit")
      ->required();
  command->add_flag("--all", options->all, "also weights in formats that dsv4 does not read");
  command->add_flag("--offline", options->offline, "print the folder of the cache; fetch nothing");
  command->add_option("--connections", options->connections, "ranges fetched at a time")
      ->check(integer_in(1, 64))
      ->capture_default_str();
  command
      ->add_option("--tries", options->tries,
                   "failures in a row, with less than 1 MiB between them, "
                   "after which to give up")
      ->check(integer_in(1, 100))
      ->capture_default_str();
  command
      ->add_option("--timeout", options->timeout_s,
                   "seconds at less than 1 KiB/s after which a connection is opened again")
      ->check(integer_in(1, 3600))
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { pull(*options); }; });
}

}  // namespace dsv4::apps
