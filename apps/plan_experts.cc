#include "apps/plan_experts.h"

#include <fmt/core.h>

#include "apps/common.h"

namespace dsv4::apps {

void add_plan_experts(CLI::App& command, ExpertOptions& options) {
  add_expert_sizes(command, options,
                   "plan a GPU that holds some of the experts, and host memory with the others: "
                   "memory for experts, or all that there is room for");
}

void cap_gpu_memory(const ExpertOptions& options, Machine& machine) {
  if (!machine.host && options.gpu)
    machine.device_bytes = std::min(machine.device_bytes, *options.gpu);
}

ExpertFit expert_fit(const ExpertOptions& options, const MemoryPlan& plan, const Machine& machine) {
  const Machine host = parse_machine("cpu");
  return fit_experts(
      plan, machine,
      {.gpu_bytes = options.gpu_bytes(),
       .host_bytes = options.host_memory.value_or(host.device_bytes - host.reserve_bytes)});
}

nlohmann::ordered_json expert_fit_json(const ExpertFit& fit) {
  return {{"experts", fit.experts},
          {"expert_bytes", fit.expert_bytes},
          {"gpu_room_bytes", fit.room_bytes},
          {"resident", fit.resident},
          {"resident_share", fit.share()},
          {"transient", fit.transient},
          {"gpu_bytes", fit.gpu_bytes()},
          {"fixed", fit.fixed},
          {"host_bytes", fit.host_bytes()},
          {"token_bytes", fit.token_bytes},
          {"uniform_link_bytes", static_cast<int64_t>(fit.link_bytes())}};
}

void print_expert_fit(const ExpertFit& fit) {
  fmt::print("\nexperts    {:>11}  {} of {} in GPU memory ({:.1f} %), {} with {} in transit\n",
             size_text(fit.experts * fit.expert_bytes), fit.resident, fit.experts,
             100 * fit.share(), size_text(fit.gpu_bytes()), fit.transient);
  fmt::print("  host memory {:>9}   copies of {}; {} have none and stay on the GPU\n",
             size_text(fit.host_bytes()), fit.experts - fit.fixed, fit.fixed);
  fmt::print("  a token reads {} of experts, {} of it over the link if all are equally likely\n",
             size_text(fit.token_bytes), size_text(static_cast<int64_t>(fit.link_bytes())));
  fmt::print("  no GPU has run this yet (docs/experts-in-host-memory.md)\n");
}

}  // namespace dsv4::apps
