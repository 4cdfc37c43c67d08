#include "dsv4/engine/check_numbers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/engine/executor.h"
#include "dsv4/formats/finite.h"
#include "dsv4/model/weight_table.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/moe_output.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"
#include "dsv4/ops/parts/compressor/compressor.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/mhc/mhc.h"
#include "dsv4/ops/parts/norm/norm.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "dsv4/ops/parts/rope/rope.h"
#include "dsv4/ops/parts/router/router.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

// What an op writes, and the weight that says which layer it belongs to.
struct Traced {
  std::vector<ConstTensorView> outputs;
  const std::byte* weight = nullptr;
  bool scores = false;
};

Traced trace(const EmbedArgs& a) {
  return {{a.out}, a.table.data};
}
Traced trace(const RmsNormArgs& a) {
  return {{a.out}, a.weight.data};
}
Traced trace(const HeadNormArgs& a) {
  return {{a.out}};
}
Traced trace(const RopeArgs& a) {
  return {{a.x}};
}
Traced trace(const QuantizeQ8Args& a) {
  return {{a.codes, a.scales}};
}
Traced trace(const FakeQuantArgs& a) {
  return {{a.out}};
}
Traced trace(const HadamardArgs& a) {
  return {{a.out}};
}
Traced trace(const LinearArgs& a) {
  return {{a.out}, a.weight.data.data};
}
Traced trace(const HcPreArgs& a) {
  return {{a.out, a.post, a.comb}, a.fn.data};
}
Traced trace(const HcPostArgs& a) {
  return {{a.streams}};
}
Traced trace(const HcHeadArgs& a) {
  return {{a.out}, a.fn.data};
}
Traced trace(const HcMeanArgs& a) {
  return {{a.out}};
}
Traced trace(const CompressorArgs& a) {
  return {{a.out}, a.ape.data};
}
Traced trace(const IndexScoresArgs& a) {
  return {{a.scores}, nullptr, true};
}
Traced trace(const SparseMlaArgs& a) {
  return {{a.out}, a.sink.data};
}
Traced trace(const RouterArgs& a) {
  return {{a.weights}, a.bias.empty() ? a.tid2eid.data : a.bias.data};
}
Traced trace(const ExpertsArgs& a) {
  if (a.stack.empty()) return {{a.acc}};
  return {
      {a.acc},
      a.stack.is_image() ? a.stack.images().gate_up_bytes.data : a.stack.file()[0].w1.data.data};
}

// A rank with whole experts has no rows of the others; what is summed is complete.
Traced trace(const ExpertsHiddenArgs& a) {
  return {
      {a.stack.is_part() ? ConstTensorView() : a.hidden},
      a.stack.is_image() ? a.stack.images().gate_up_bytes.data : a.stack.file()[0].w1.data.data};
}
Traced trace(const ExpertsOutputArgs& a) {
  return {
      {a.acc},
      a.stack.is_image() ? a.stack.images().gate_up_bytes.data : a.stack.file()[0].w2.data.data};
}
Traced trace(const ExpertsSumArgs& a) {
  return {{a.acc}};
}
Traced trace(const MoeArgs& a) {
  return {{a.acc}, a.gate.data.data};
}
Traced trace(const MoeHiddenArgs& a) {
  return {{a.routed.is_part() ? ConstTensorView() : a.hidden, a.shared_hidden}, a.gate.data.data};
}
Traced trace(const MoeOutputArgs& a) {
  return {{a.acc}, a.shared.file()[0].w2.data.data};
}

template <class Args>
bool trace_as(const OpCall& call, const Op<Args>& op, Traced& traced) {
  const Args* args = call.args_of(op);
  if (args != nullptr) traced = trace(*args);
  return args != nullptr;
}

template <class... Args>
Traced trace_one_of(const OpCall& call, const Op<Args>&... ops) {
  Traced traced;
  static_cast<void>((trace_as(call, ops, traced) || ...));
  return traced;
}

// The view in host memory. Strided outputs of a device are copied with their gaps.
ConstTensorView on_host(const ConstTensorView& view, Device* device, std::vector<std::byte>& copy) {
#if DSV4_CUDA
  if (device == nullptr) return view;
  int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis)
    last +=
        (view.dim(axis) - 1) * (axis == view.rank - 1 ? 1 : view.stride[static_cast<size_t>(axis)]);
  copy.resize(static_cast<size_t>((last + 1) * item_bytes(view.dtype)));
  device->wait();
  device->memory().download(copy.data(), view.data, static_cast<int64_t>(copy.size()));
  return {view, copy.data()};
#else
  static_cast<void>(device), static_cast<void>(copy);
  return view;
#endif
}

}  // namespace

CheckNumbers::CheckNumbers(const Model& model)
    : names_(names_by_address(model.config(), model.weights())) {
  const auto& drafter = model.weights().drafter;
  for (size_t block = 0; drafter && block < drafter->layers.size(); ++block) {
    const ExpertImages& images = drafter->layers[block].moe.images;
    if (!images.empty())
      names_.emplace(images.gate_up_bytes.data, fmt::format("mtp.{}.ffn.experts", block));
  }
  for (size_t l = 0; l < model.weights().layers.size(); ++l) {
    const ExpertImages& images = model.weights().layers[l].moe.images;
    if (!images.empty())
      names_.emplace(images.gate_up_bytes.data, fmt::format("layers.{}.ffn.experts", l));
  }
}

void CheckNumbers::observe(const OpCall& call) {
  if (call.impl().parts()) return call.run();  // its own calls come here one by one
#if DSV4_CUDA
  const Device* const device = call.context().device;
  if (device != nullptr && device->is_dry_run()) return call.run();  // its tensors have no memory
#endif
  const Traced traced = trace_one_of(
      call, embed, rms_norm, head_norm, rope, quantize_q8, fake_quant, hadamard, linear, hc_pre,
      hc_post, hc_head, hc_mean, compressor, index_scores, sparse_mla, router, experts,
      experts_hidden, experts_output, experts_sum, moe_hidden, moe_output, moe);
  const auto named = names_.find(traced.weight);
  const bool own = traced.weight != nullptr && named != names_.end();
  if (own) latest_ = named->second;
  const std::string place = own ? " with " + latest_ : latest_.empty() ? "" : " after " + latest_;
  try {
    call.run();
  } catch (const NotFinite& error) {
    throw NotFinite(fmt::format("{}{}: {}", call.op(), place, error.what()));
  }
  for (const ConstTensorView& output : traced.outputs) {
    if (output.empty() || output.numel() == 0) continue;
    std::vector<std::byte> copy;
    const ConstTensorView view = on_host(output, call.context().device, copy);
    const auto at = traced.scores ? first_bad_score(view) : first_non_finite(view);
    if (!at) continue;
    const int64_t columns = view.dim(-1);
    throw NotFinite(fmt::format("{}{}: row {}, column {} of the output is {}", call.op(), place,
                                *at / columns, *at % columns, value_at(view, *at)));
  }
}

void require_finite_logits(const ConstTensorView& logits) {
  const auto at = first_non_finite(logits);
  if (!at) return;
  const int64_t vocab = logits.dim(1);
  throw NotFinite(fmt::format("the logit of token {} in row {} is {}", *at % vocab, *at / vocab,
                              value_at(logits, *at)));
}

std::optional<std::string> find_non_finite(const Model& model, const Context& context,
                                           std::span<const int32_t> ids) {
  constexpr int64_t kChunk = 512;
  const auto total = static_cast<int64_t>(ids.size());
  CheckNumbers check(model);
  Context checked = context;
  checked.observer = &check;
  try {
    Executor executor(
        model, checked,
        {.max_tokens = total, .max_sequences = 1, .max_batch_tokens = std::min(kChunk, total)});
    const SeqId seq = executor.cache().open();
    for (int64_t first = 0; first < total; first += kChunk) {
      const auto count = static_cast<size_t>(std::min(kChunk, total - first));
      const bool last = first + kChunk >= total;
      const Work work{seq, ids.subspan(static_cast<size_t>(first), count),
                      last ? Work::Logits::kLast : Work::Logits::kNone};
      executor.start({&work, 1});
    }
    executor.wait();
  } catch (const NotFinite& place) {
    return fmt::format("{}: {}; dsv4 inspect --verify looks for damaged weights",
                       model.checkpoint().folder(), place.what());
  }
  return std::nullopt;
}

void fail_with_place(const Model& model, const Context& context, std::span<const int32_t> ids,
                     const NotFinite& error) {
  const auto place = find_non_finite(model, context, ids);
  throw NotFinite(place ? *place : error.what());
}

}  // namespace dsv4
