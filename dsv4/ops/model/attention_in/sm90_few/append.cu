#include "dsv4/ops/model/attention_in/sm90_few/append.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append_kernel.cuh"

namespace dsv4 {

namespace few = attention_in_kernel::sm90_few;

namespace {

constexpr int64_t kMaxTokens = 64;  // also of sequences

bool has_layout(const KvPool& pool) {
  return pool.packed() && !pool.layout.v32() && pool.layout.width() == few::kWidth &&
         pool.layout.rope == few::kRotated;
}

}  // namespace

const char* append_rows_reject(const Context& context, const AttentionInArgs& args) {
  if (context.device->info().major != 9) return "clusters of CTAs are Hopper's";
  if (context.numerics != Numerics::kOfficial) return "rounds to bf16";
  if (args.x.dim(0) > kMaxTokens) return "more than 64 tokens";
  if (args.freqs.dim(0) != few::kPairs) return "rotates 64 columns";
  if (!has_layout(args.window)) return "wants packed rows of 448 + 64 values";
  if (args.state.layout.ratio == 0) return nullptr;
  if (args.start.numel() > kMaxTokens) return "more than 64 sequences";
  if (!has_layout(args.entries)) return "wants packed rows of 448 + 64 values";
  if (args.index_state.layout.ratio == 0) return nullptr;
  if (!args.keys.packed() || args.keys.layout.width != few::kKeyWidth)
    return "wants packed keys of 128 values";
  return nullptr;
}

void append_rows(const Context& context, const AttentionInArgs& args, const AppendInputs& inputs) {
  const few::AppendParams params = few::make_params(args, inputs);
  launch(*context.device, "append", few::append_kernel,
         {.grid = few::kCtas * few::num_clusters(params),
          .block = few::kThreads,
          .shared = sizeof(few::Shared),
          .cluster = few::kCtas,
          .pdl = true},
         params);
}

}  // namespace dsv4
