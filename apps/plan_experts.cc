#include "apps/plan_experts.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

// "60G", "23.5GiB", "512m": K, M, G and T are powers of 1024; -1: none of these.
int64_t parse_size(std::string_view text) {
  double number = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0)) return -1;
  std::string unit(at, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = unit.size() == 1 ? kUnits.find(unit) : kUnits.npos;
  if (power == kUnits.npos) return -1;
  const double bytes = std::ldexp(number, 10 * static_cast<int>(power + 1));
  return bytes < 0x1p60 ? static_cast<int64_t>(bytes) : -1;
}

int64_t size_option(const char* option, const std::string& text) {
  const int64_t bytes = parse_size(text);
  if (bytes < 0)
    throw CLI::ValidationError(
        option, fmt::format("'{}': want a size such as 60G or 512M", quotable(text)));
  return bytes;
}

}  // namespace

void add_plan_experts(CLI::App& command, PlanExpertsOptions& options) {
  CLI::Option* experts =
      command
          .add_option_function<std::string>(
              "--experts-memory",
              [&options](const std::string& text) {
                if (text != "auto") size_option("--experts-memory", text);
                options.experts_memory = text;
              },
              "plan a GPU that holds some of the experts, and host memory with the others: memory "
              "for experts, or all that there is room for. No step does this yet")
          ->option_text("SIZE|auto");
  command
      .add_option_function<std::string>(
          "--gpu-memory",
          [&options](const std::string& text) { options.gpu = size_option("--gpu-memory", text); },
          "memory that a GPU gives, if less than it has")
      ->option_text("SIZE");
  command
      .add_option_function<std::string>(
          "--host-memory",
          [&options](const std::string& text) {
            options.host_memory = size_option("--host-memory", text);
          },
          "host memory for experts, with --experts-memory; default: what this machine has")
      ->option_text("SIZE")
      ->needs(experts);
}

void cap_gpu_memory(const PlanExpertsOptions& options, Machine& machine) {
  if (!machine.host && options.gpu)
    machine.device_bytes = std::min(machine.device_bytes, *options.gpu);
}

ExpertFit expert_fit(const PlanExpertsOptions& options, const MemoryPlan& plan,
                     const Machine& machine) {
  const Machine host = parse_machine("cpu");
  ExpertRequest request{.host_bytes =
                            options.host_memory.value_or(host.device_bytes - host.reserve_bytes)};
  if (options.experts_memory != "auto") request.gpu_bytes = parse_size(options.experts_memory);
  return fit_experts(plan, machine, request);
}

nlohmann::ordered_json expert_fit_json(const ExpertFit& fit) {
  return {{"experts", fit.experts},
          {"expert_bytes", fit.expert_bytes},
          {"gpu_room_bytes", fit.room_bytes},
          {"resident", fit.resident},
          {"resident_share", fit.share()},
          {"gpu_bytes", fit.gpu_bytes()},
          {"fixed", fit.fixed},
          {"host_bytes", fit.host_bytes()},
          {"token_bytes", fit.token_bytes},
          {"uniform_link_bytes", static_cast<int64_t>(fit.link_bytes())},
          {"runs", false}};
}

void print_expert_fit(const ExpertFit& fit) {
  fmt::print("\nexperts    {:>11}  {} of {} in GPU memory ({:.1f} %), {}\n",
             size_text(fit.experts * fit.expert_bytes), fit.resident, fit.experts,
             100 * fit.share(), size_text(fit.gpu_bytes()));
  fmt::print("  host memory {:>9}   copies of {}; {} have none and stay on the GPU\n",
             size_text(fit.host_bytes()), fit.experts - fit.fixed, fit.fixed);
  fmt::print("  a token reads {} of experts, {} of it over the link if all are equally likely\n",
             size_text(fit.token_bytes), size_text(static_cast<int64_t>(fit.link_bytes())));
  fmt::print("  not yet: no step fetches experts (docs/experts-in-host-memory.md)\n");
}

}  // namespace dsv4::apps
