#include "dsv4/engine/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/cache_plan.h"
#include "op_list.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

// What a safetensors file says of its tensors: eight bytes of length, then so many of JSON.
std::string_view header_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  uint64_t length = 0;
  if (bytes.size() < sizeof length) return {};
  std::memcpy(&length, bytes.data(), sizeof length);
  const size_t end = std::min<uint64_t>(length, bytes.size() - sizeof length);
  return {reinterpret_cast<const char*>(bytes.data()) + sizeof length, end};
}

std::string processor(const Device* device) {
#if DSV4_CUDA
  if (device != nullptr) {
    const DeviceInfo& info = device->info();
    return fmt::format("{} sm_{}{}", info.name, info.major, info.minor);
  }
#else
  static_cast<void>(device);
#endif
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") ? "avx512"
         : __builtin_cpu_supports("avx2")  ? "avx2"
                                           : "x86-64";
#else
  return "host";
#endif
}

}  // namespace

std::string model_identity(const std::string& folder) {
  std::string text = read_text_file(folder + "/config.json");
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  }
  if (error) fail(ErrorCode::kIo, "cannot read the folder {}: {}", folder, error.message());
  std::ranges::sort(files);
  for (const fs::path& path : files) {
    const MappedFile file(path.string());
    text += fmt::format("\n{} {} {} {}", path.filename().string(), file.bytes().size(),
                        fs::last_write_time(path).time_since_epoch().count(),
                        hex_digits(digest_of(header_of(file))));
  }
  return text;
}

RankIdentity rank_identity(const std::string& program, const std::string& model,
                           const Device* device, ExpertsPlacement placement, DrafterKind drafter) {
  constexpr size_t kDigits = 16;
  return {.program = program,
          .model = hex_digits(digest_of(model)).substr(0, kDigits) +
                   (placement == ExpertsPlacement::kWhole ? " with whole experts" : "") +
                   (drafter == DrafterKind::kNone ? "" : fmt::format(" and {}", name(drafter))),
          .processor = processor(device)};
}

Digest cache_fingerprint(const std::string& identity, const Model& model, const Context& context,
                         const CachePlan& plan) {
  std::string text =
      fmt::format("{}\nnumerics {} batch invariant {} on {}", identity, name(context.numerics),
                  context.need_batch_invariant, processor(model.device()));
  text += fmt::format("\ncheckpoints every {}", checkpoint_step(plan.groups));
  for (const CacheGroup& group : plan.groups)
    text += fmt::format("\ngroup {} {} {}", group.tokens_per_entry, group.page_entries,
                        group.keep_tokens);
  for (const CachePlan::Pool& pool : plan.pools)
    text += fmt::format("\npool {} {}{}", pool.group, pool.page_items * item_bytes(pool.dtype),
                        pool.own_pages > 0 ? " of dspark" : "");
  for (const StateLayout& state : plan.states)
    text += fmt::format("\nstate {} {} {}", state.ratio, state.width, state.overlap);
  if (plan.streams_bytes > 0) text += fmt::format("\ndrafter mtp, streams {}", plan.streams_bytes);
  for (const ImplChoice& choice : context.choices)
    text += fmt::format("\nchoice {}={}", choice.op, choice.impl);
  for_each_op([&](const auto& op) {
    text += fmt::format("\n{}", op.name);
    for (const auto& impl : op.impls) text += fmt::format(" {}", impl.name);
  });
  return digest_of(text);
}

}  // namespace dsv4
