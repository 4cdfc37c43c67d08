#include "dsv4/convert/quantize.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/convert/imatrix.h"
#include "dsv4/convert/recipe_codebooks.h"
#include "dsv4/convert/shard_finisher.h"
#include "dsv4/convert/shards.h"
#include "dsv4/convert/side_files.h"
#include "dsv4/convert/stored_tensors.h"
#include "dsv4/convert/weight_workers.h"
#include "dsv4/convert/work_folder.h"
#include "dsv4/loader/checkpoint.h"
#include "dsv4/loader/safetensors_layout.h"
#include "dsv4/model/config.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTool = "dsv4 " DSV4_VERSION;
// Bytes of source pages that may stay in memory at a time.
constexpr int64_t kReleaseBytes = int64_t{256} << 20;

// Identifies a version of a file without reading its data.
std::string file_stamp(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  const auto time = fs::last_write_time(path, error).time_since_epoch().count();
  if (error) fail(ErrorCode::kIo, "cannot stat {}: {}", path, error.message());
  return fmt::format("{} bytes, written {}", bytes, time);
}

std::string source_stamp(const Checkpoint& checkpoint) {
  uint64_t hash = 0;
  std::map<std::string_view, int> files;
  for (const auto& [name, stored] : checkpoint.tensors()) {
    ++files[stored.file];
    hash = hash_text(fmt::format("{} {}\n", name, to_string(stored.view)), hash);
  }
  for (const auto& [path, count] : files)
    hash = hash_text(fmt::format("{} {}\n", count, file_stamp(std::string(path))), hash);
  return fmt::format("{} tensors in {} files, {:016x}", checkpoint.tensors().size(), files.size(),
                     hash);
}

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options,
            const std::function<void(const QuantizeProgress&)>& progress)
      : options_(options),
        progress_(progress),
        checkpoint_(Checkpoint::open(options.source)),
        stored_(stored_tensors(checkpoint_)),
        list_(
            convert_list(stored_, options.recipe, load_config(checkpoint_.config_path()).o_groups)),
        shards_(plan_shards(list_, options.shard_bytes)),
        codebooks_(read_codebooks(options.recipe)),
        num_workers_(options.workers > 0 ? options.workers
                                         : WeightWorkers::default_number(options.device)),
        workers_(options.device, checkpoint_, num_workers_) {}

  QuantizeResult run() {
    check_recipe();
    if (!options_.imatrix.empty()) open_imatrix();
    count_totals();
    WorkFolder folder(options_.out, job(), options_.restart);
    check_free_space(folder);
    ShardFinisher finisher(folder, static_cast<size_t>(num_workers_));
    for (const ShardPlan& shard : shards_) {
      Json record;
      if (folder.finished(shard.file, &record)) {
        ++result_.resumed_shards;
      } else {
        record = write_shard(shard, folder.file(shard.file), finisher);
      }
      add_record(record);
      // Counts of pieces are approximate; those of whole shards are exact.
      reached_bytes_ += source_bytes(shard);
      now_.bytes = reached_bytes_;
      now_.tensors += num_tensors(shard);
      progress_(now_);
    }
    finisher.wait();
    write_shard_index(folder.model(), shards_);
    write_file(folder.file("config.json"),
               converted_config(read_text_file(checkpoint_.config_path()), options_.recipe, list_,
                                checkpoint_.config_path()));
    result_.side_files = copy_side_files(options_.source, folder.model());
    finish_ledger();
    write_file(folder.file(kLedgerFile), to_text(result_.ledger));
    folder.publish();
    return std::move(result_);
  }

 private:
  int64_t source_bytes(const ShardPlan& shard) const {
    int64_t bytes = 0;
    for (size_t i = shard.begin; i < shard.end; ++i) bytes += list_.items[i].source_bytes;
    return bytes;
  }
  int64_t num_tensors(const ShardPlan& shard) const {
    int64_t count = 0;
    for (size_t i = shard.begin; i < shard.end; ++i)
      count += static_cast<int64_t>(list_.items[i].tensors.size());
    return count;
  }

  // A recipe for other names would copy the whole checkpoint and say that all is well.
  void check_recipe() const {
    const std::vector<Rule>& rules = options_.recipe.rules;
    if (!rules.empty() && list_.idle.size() == rules.size())
      fail(ErrorCode::kBadInput, "{}: no rule of the recipe matches a weight of {}",
           list_.idle.front(), options_.source);
  }

  void open_imatrix() {
    imatrix_ = std::make_unique<Imatrix>(options_.imatrix, list_);
    ImatrixUse use = check_imatrix(imatrix_->vectors(), list_, options_.imatrix);
    if (use.used == 0)
      fail(ErrorCode::kBadInput,
           "{}: none of its {} entries is for one of the {} weights whose scales are searched{}",
           options_.imatrix, imatrix_->vectors().size(), use.missing,
           use.unknown.empty() ? ""
                               : fmt::format(": {} is no weight of this checkpoint",
                                             quotable(use.unknown.front())));
    imatrix_->release_pages();
    result_.imatrix_used = use.used;
    result_.imatrix_missing = use.missing;
    result_.imatrix_unknown = std::move(use.unknown);
  }

  void count_totals() {
    now_.total_bytes = list_.source_bytes;
    for (const ShardPlan& shard : shards_) now_.total_tensors += num_tensors(shard);
    for (const OutputItem& item : list_.items) {
      for (const OutputTensor& tensor : item.tensors)
        result_.largest_tensor = std::max(result_.largest_tensor, tensor.meta.bytes());
    }
    for (const auto& [name, meta] : stored_)
      result_.largest_tensor = std::max(result_.largest_tensor, meta.bytes());
    result_.shards = static_cast<int64_t>(shards_.size());
    result_.source_bytes = list_.source_bytes;
    result_.unused_rules = list_.idle;
  }

  // The properties that must match for a finished shard to be reused.
  WorkFolder::Job job() const {
    std::string books;
    for (const auto& [file, book] : codebooks_) {
      for (const float value : book.values()) books += fmt::format("{} ", value);
    }
    return {{"tool", kTool},
            {"source", source_stamp(checkpoint_)},
            {"recipe", options_.recipe.text},
            {"codebook", books},
            {"choice of scales", name(options_.scales)},
            {"imatrix", options_.imatrix.empty() ? "none" : file_stamp(options_.imatrix)},
            {"shard size", fmt::format("{}", options_.shard_bytes)}};
  }

  // Checks early instead of failing after an hour. Finished shards already have their space.
  void check_free_space(const WorkFolder& folder) const {
    int64_t need = list_.bytes;
    for (const ShardPlan& shard : shards_) {
      if (!folder.in_place(shard.file)) continue;
      for (size_t i = shard.begin; i < shard.end; ++i) need -= list_.items[i].bytes();
    }
    std::error_code error;
    const fs::space_info space = fs::space(folder.model(), error);
    if (!error && static_cast<int64_t>(space.available) >= 0 &&
        static_cast<int64_t>(space.available) < need)
      fail(ErrorCode::kIo, "{} needs {:.1f} MiB more, but only {:.1f} MiB are free", folder.model(),
           static_cast<double>(need) / (1 << 20), static_cast<double>(space.available) / (1 << 20));
  }

  // The items of a shard, after a check that needs the data: whether the scales of lossless imports
  // fit E4M4.
  std::vector<OutputItem> resolved_items(const ShardPlan& shard) {
    std::vector<OutputItem> items(list_.items.begin() + static_cast<ptrdiff_t>(shard.begin),
                                  list_.items.begin() + static_cast<ptrdiff_t>(shard.end));
    for (OutputItem& item : items) {
      if (!item.lossless_import()) continue;
      std::string why =
          workers_.first().on_host().import_obstacle(checkpoint_.weight(item.name, item.n, item.k));
      count_read(item.source_bytes);
      if (!why.empty()) item = kept_item(stored_, item, std::move(why));
    }
    return items;
  }

  Json write_shard(const ShardPlan& shard, const std::string& path, ShardFinisher& finisher) {
    const std::vector<OutputItem> items = resolved_items(shard);
    std::vector<std::pair<std::string, TensorMeta>> tensors;
    std::vector<size_t> first;  // tensor of each item
    for (const OutputItem& item : items) {
      first.push_back(tensors.size());
      for (const OutputTensor& tensor : item.tensors)
        tensors.emplace_back(file_tensor(item, tensor).name, file_tensor(item, tensor).meta);
    }
    const SafetensorsLayout layout = layout_safetensors(tensors, {{"format", "pt"}});
    auto file = std::make_unique<AtomicFile>(path);
    file->write_at(0, std::as_bytes(std::span(layout.header)));
    std::vector<Json> entries(items.size());  // of the ledger; null where it has none
    workers_.run(items.size(), [&](WeightWorker& worker, size_t i) {
      const PieceSink sink = {
          .write =
              [&](size_t tensor, int64_t offset, std::span<const std::byte> bytes) {
                file->write_at(layout.offset[first[i] + tensor] + offset, bytes);
              },
          .consumed = [&](int64_t bytes) { consumed(bytes); }};
      entries[i] = write_item(items[i], worker, sink);
    });
    Json record = {{"weights", Json::array()}, {"exceptions", Json::array()}};
    for (size_t i = 0; i < items.size(); ++i) {
      if (!entries[i].is_null()) record["weights"].push_back(std::move(entries[i]));
      if (!items[i].kept.empty())
        record["exceptions"].push_back({{"name", items[i].name}, {"why", items[i].kept}});
    }
    finisher.finish(shard.file, std::move(file), record);
    return record;
  }

  // Returns the ledger's entry of a weight. Called by several threads.
  Json write_item(const OutputItem& item, WeightWorker& worker, const PieceSink& sink) {
    LedgerWeight entry{.name = item.name, .elements = item.n * item.k, .bytes = item.bytes()};
    if (item.converted()) {
      const WeightError error = worker.convert(source_of(item), item, choice(item), sink);
      entry.format = to_string(item.target);
      entry.sqnr_db = error.sqnr_db();
      const std::lock_guard lock(mutex_);
      now_.weights += entry.elements;
    } else {
      for (size_t i = 0; i < item.tensors.size(); ++i)
        copy_tensor(checkpoint_.tensors().at(item.tensors[i].name).view, i, sink);
      entry.format = item.source == WeightFormat::kKbit ? fmt::format("k{}", item.source_bits)
                                                        : name(item.source);
    }
    return item.is_weight ? to_json(entry) : Json();
  }

  WeightView source_of(const OutputItem& item) {
    const std::lock_guard lock(mutex_);  // a checkpoint records what has been requested
    return checkpoint_.weight(item.name, item.n, item.k);
  }

  ConvertChoice choice(const OutputItem& item) const {
    ConvertChoice choice{.scales = options_.scales};
    if (item.target.kind == Target::Kind::kKbit) {
      choice.codebook = codebook_of(item.target, codebooks_);
    } else if (!is_fp4(item.target)) {
      return choice;
    }
    if (imatrix_ == nullptr) return choice;
    const auto at = imatrix_->vectors().find(item.name);
    if (at != imatrix_->vectors().end()) choice.importance = at->second;
    return choice;
  }

  // Called by several threads.
  void consumed(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    now_.bytes += bytes;
    now_.processed_bytes += bytes;
    count_read(bytes);
    progress_(now_);
  }

  void count_read(int64_t bytes) {
    unreleased_ += bytes;
    if (unreleased_ < kReleaseBytes) return;
    checkpoint_.release_pages();
    if (imatrix_ != nullptr) imatrix_->release_pages();
    unreleased_ = 0;
  }

  void add_record(const Json& record) {
    for (const Json& row : record.at("weights"))
      result_.ledger.weights.push_back(ledger_weight(row));
    for (const Json& exception : record.at("exceptions"))
      result_.ledger.exceptions.push_back(
          {exception.at("name").get<std::string>(), exception.at("why").get<std::string>()});
  }

  void finish_ledger() {
    const auto file_name = [](const std::string& path) {
      return fs::path(path).lexically_normal().filename().string();
    };
    Ledger& ledger = result_.ledger;
    result_.bytes = list_.bytes;
    ledger.tool = kTool;
    ledger.source = {{"name", file_name(fs::absolute(options_.source).string())},
                     {"tensors", stored_.size()},
                     {"bytes", list_.source_bytes}};
    ledger.output = {{"tensors", now_.total_tensors}, {"bytes", list_.bytes}};
    ledger.options = {
        {"recipe", options_.recipe.text},
        {"scales", name(options_.scales)},
        {"imatrix", options_.imatrix.empty() ? Json() : Json(file_name(options_.imatrix))},
        {"imatrix_missing", result_.imatrix_missing}};
  }

  const QuantizeOptions& options_;
  const std::function<void(const QuantizeProgress&)>& progress_;
  Checkpoint checkpoint_;
  StoredTensors stored_;
  ConvertList list_;
  std::vector<ShardPlan> shards_;
  UserCodebooks codebooks_;
  std::unique_ptr<Imatrix> imatrix_;
  const int num_workers_;
  WeightWorkers workers_;
  std::mutex mutex_;  // of what workers share: checkpoint_.weight(), now_, progress_, unreleased_
  QuantizeResult result_;
  QuantizeProgress now_;
  int64_t reached_bytes_ = 0, unreleased_ = 0;
};

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options,
                        const std::function<void(const QuantizeProgress&)>& progress) {
  if (options.scales == ScaleChoice::kReference && !options.imatrix.empty())
    fail(ErrorCode::kBadInput, "an imatrix requires searched scales: --scales search");
  return Quantizer(options, progress).run();
}

}  // namespace dsv4
