#include "dsv4/server/engine_port.h"

namespace dsv4 {
namespace {

class ModelEngine : public EnginePort {
 public:
  ModelEngine(std::shared_ptr<const Model> model, const EngineOptions& options)
      : model_(std::move(model)), engine_(*model_, options) {
    const ModelConfig& config = model_->config();
    limits_ = {.vocab_size = static_cast<int32_t>(config.vocab_size),
               .context = std::min<int64_t>(options.max_tokens, config.max_positions),
               .max_sequences = options.max_sequences,
               .eos = config.eos};
  }

  const EngineLimits& limits() const override { return limits_; }
  RequestId submit(std::span<const int32_t> prompt, const GenerateParams& params,
                   TokenSink& sink) override {
    return engine_.submit(prompt, params, sink);
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  bool step() override { return engine_.step(); }
  EngineStats stats() const override { return engine_.stats(); }
  MemoryUse device_memory() const override { return engine_.device_memory(); }
  ExpertStats expert_stats() const override { return engine_.expert_stats(); }
  void check_ranks() override { engine_.check_ranks(); }
  std::vector<RankStats> rank_stats() const override { return engine_.rank_stats(); }
  void drop_prefixes() override { engine_.drop_prefixes(); }

 private:
  std::shared_ptr<const Model> model_;
  Engine engine_;
  EngineLimits limits_;
};

}  // namespace

std::unique_ptr<EnginePort> model_engine(std::shared_ptr<const Model> model,
                                         const EngineOptions& options) {
  return std::make_unique<ModelEngine>(std::move(model), options);
}

}  // namespace dsv4
