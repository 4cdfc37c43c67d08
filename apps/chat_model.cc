#include "apps/chat_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>

#include "apps/common.h"
#include "apps/generation.h"
#include "apps/rank_process.h"
#include "apps/synthetic_tokenizer.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/model_folder.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/model/released.h"
#include "dsv4/plan/synthetic.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

constexpr int64_t kChatContext = 32768;

UnitStoreOptions tiers_of(const ChatModelOptions& options) {
  constexpr double kGb = 1e9, kDefaultRam = 1;  // units pass through host memory
  const bool disk = !options.disk_cache.empty();
  const double ram = options.ram_cache_gb == 0 && disk ? kDefaultRam : options.ram_cache_gb;
  if (ram > 0 && options.prefix_checkpoints == 0)
    fail(ErrorCode::kBadInput,
         "--ram-cache and --disk-cache keep checkpoints, and --prefix-checkpoints 0 makes none");
  return {.ram_bytes = static_cast<int64_t>(ram * kGb),
          .folder = options.disk_cache,
          .disk_bytes = static_cast<int64_t>(options.disk_cache_gb * kGb),
          .on_disk_state = options.on_disk_state};
}

// Tokens of a step. One that brings experts over the link takes the same time for any number.
int64_t step_tokens(const Devices& devices, const ExpertOptions& experts) {
  if (devices.front() == nullptr) return 512;
  return experts.wanted() ? 8192 : 2048;
}

Tokenizer tokenizer_of(const ChatModelOptions& options, const std::string& folder) {
  if (options.random.synthetic.empty()) return load_tokenizer(folder);
  const std::string demo = read_text_file(tokenizer_file(folder));
  const int64_t tokens = released_config(options.random.synthetic).vocab_size;
  return Tokenizer::parse(widened_tokenizer(demo, tokens), "the synthetic tokenizer");
}

void make_random_weights([[maybe_unused]] Model& model, [[maybe_unused]] const Devices& devices,
                         [[maybe_unused]] uint64_t seed, [[maybe_unused]] int64_t cache_bytes,
                         [[maybe_unused]] const Context& steps,
                         [[maybe_unused]] const std::optional<ExpertMemory>& outside) {
#if DSV4_CUDA
  place_others(model, cache_bytes, steps);
  make_on_devices(model, devices, seed, cache_bytes, steps, outside ? &*outside : nullptr);
#endif
}

Model make_model(const ChatModelOptions& options, const std::string& folder,
                 const Devices& devices) {
  if (options.random.synthetic.empty())
    return load_with_drafter(options.speculate, folder, options.device, devices, options.placement);
  return synthetic_ranks(options.random, random_drafter(options.speculate), options.device, devices,
                         options.placement);
}

std::unique_ptr<EnginePort> load_engine(const ChatModelOptions& options, const std::string& folder,
                                        const ServedModel& text,
                                        std::function<void()>& finish_record) {
  check_expert_options(options.experts, options.device, options.placement);
  const Devices devices = open_devices(options.device);
  const bool random = !options.random.synthetic.empty();
  auto model = std::make_shared<Model>(make_model(options, folder, devices));
  check_vocabulary(*text.tokenizer, *model);
  const int64_t context =
      std::min<int64_t>(options.context.value_or(kChatContext), model->config().max_positions);
  EngineOptions engine{.numerics = options.numerics,
                       .deterministic = options.deterministic,
                       .choices = options.choices,
                       .max_tokens = context,
                       .max_sequences = options.max_batch,
                       .longest_step = std::chrono::milliseconds(options.max_itl_ms),
                       .prefix_checkpoints = options.prefix_checkpoints,
                       .checkpoint_interval = options.checkpoint_interval,
                       .tiers = tiers_of(options),
                       .block_events = options.block_events,
                       .max_scored_tokens = options.max_scored_tokens};
  apply_speculation(options.speculate, *model, options.device, engine);
  if (!engine.tiers.folder.empty()) engine.model_identity = model_identity(folder);
  engine.cache_tokens =
      options.cache_tokens.value_or(context * std::min<int64_t>(options.max_batch, 2));
  engine.max_batch_tokens = std::max<int64_t>(
      options.max_batch_tokens.value_or(step_tokens(devices, options.experts)), options.max_batch);
  const auto record = std::make_shared<const ExpertRecord>(
      options.record, options.device, options.experts.wanted(), model->config());
  engine.expert_trace = record->trace();
  const std::optional<ExpertMemory> outside =
      expert_memory(options.experts, model->config(), cache_limits(engine), engine.tiers.ram_bytes);
  if (random) {
    make_random_weights(*model, devices, options.random.seed, cache_bytes(*model, engine),
                        step_context(engine), outside);
  } else {
    place_model(*model, devices, cache_bytes(*model, engine), step_context(engine), outside);
  }
  record->begin(*model);
  if (options.record.wanted()) finish_record = [record, model] { record->finish(*model); };
  return model_engine(std::move(model), engine);
}

}  // namespace

void add_chat_model_options(CLI::App& command, ChatModelOptions& options) {
  command.add_option("MODEL", options.model, "model folder, ORG/NAME, or demo");
  add_device(command, options.device);
  add_placement(command, options.placement);
  add_threads(command);
  add_numerics(command, options.numerics);
  command.add_flag("--deterministic", options.deterministic,
                   "the same tokens whatever else runs in the batch");
  add_choices(command, options.choices);
  add_expert_options(command, options.experts);
  command
      .add_option("--context", options.context,
                  "most tokens of prompt and answer; default: 32768, or what the model has")
      ->check(integer_in(16, 1 << 24));
  command
      .add_option("--prefix-checkpoints", options.prefix_checkpoints,
                  "beginnings of conversations that are not computed again")
      ->check(integer_in(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--checkpoint-interval", options.checkpoint_interval,
                  "tokens between them inside a long prompt")
      ->check(integer_in(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--ram-cache", options.ram_cache_gb,
                  "GB of host memory for checkpoints that leave the cache; 0: none, or 1 with "
                  "--disk-cache")
      ->check(number_in(0, 1e6))
      ->option_text("GB (0)");
  command
      .add_option("--disk-cache", options.disk_cache,
                  "folder that keeps checkpoints, also when the program ends")
      ->option_text("DIR");
  command.add_option("--disk-cache-gb", options.disk_cache_gb, "bytes of that folder at most")
      ->check(number_in(0, 1e9))
      ->option_text("GB (64)");
  add_speculate_options(command, options.speculate);
  command.add_option("--thinking", options.thinking, "where a request does not say")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command
      .add_option("--effort-profile", options.effort_profile,
                  "texts of the efforts; auto: by the model folder")
      ->check(CLI::IsMember({"auto", "official", "preview"}))
      ->capture_default_str();
  command.add_option("--engine", options.engine, "script:FILE answers from a file, for tests");
}

std::string folder_of(const ChatModelOptions& options) {
  const bool random = !options.random.synthetic.empty();
  if (random && !options.disk_cache.empty())
    fail(ErrorCode::kBadInput, "--disk-cache keeps prefixes of a model folder, not of --synthetic");
  return find_model(random ? "demo" : options.model);
}

void follow_if_rank(const ChatModelOptions& options) {
  if (!follows(options.device)) return;
  make_model(options, folder_of(options), open_devices(options.device));
}

ChatModel load_chat_model(const ChatModelOptions& options) {
  const std::string folder = folder_of(options);
  ChatModel model;
  model.text = std::make_shared<ServedModel>(
      std::make_shared<const Tokenizer>(tokenizer_of(options, folder)));
  ServedModel& text = *model.text;
  text.names.push_back(options.model.empty() ? "synthetic-" + options.random.synthetic
                                             : options.model);
  text.chat = chat_options_of_folder(folder, options.effort_profile, options.thinking);
  text.sampling = load_sampling_defaults(folder);
  text.created = std::time(nullptr);
  constexpr std::string_view kScript = "script:";
  if (options.engine.starts_with(kScript)) {
    if (options.record.wanted())
      fail(ErrorCode::kBadInput,
           "--experts-trace and --experts-counts-out: --engine script chooses no experts");
    if (options.experts.wanted()) refuse_expert_memory("--engine script has no experts");
    const std::string file = options.engine.substr(kScript.size());
    const EngineLimits limits{.vocab_size = text.tokenizer->vocab_size(),
                              .context = options.context.value_or(kChatContext),
                              .max_sequences = options.max_batch,
                              .eos = {text.markers.require(Marker::kEos)}};
    model.engine = script_engine(read_text_file(file), file, text.tokenizer, limits);
  } else {
    if (!options.engine.empty()) fail(ErrorCode::kBadInput, "--engine: want script:FILE");
    model.engine = load_engine(options, folder, text, model.finish_record);
  }
  text.limits = model.engine->limits();
  return model;
}

}  // namespace dsv4::apps
