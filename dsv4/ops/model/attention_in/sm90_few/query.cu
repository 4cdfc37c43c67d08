#include "dsv4/ops/model/attention_in/sm90_few/query.h"

#include "dsv4/base/bits.h"
#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_kernel.cuh"

namespace dsv4::attention_in_kernel::query {

void normalize(Device& device, const AttentionInArgs& args, const ConstTensorView& latent,
               const StoredLatents& to) {
  const NormalizeParams params = normalize_params(args, latent, to);
  launch(device, "normalize_latents", normalize_kernel,
         {.grid = latent.dim(0), .block = normalize_threads(params.groups), .pdl = true}, params);
}

}  // namespace dsv4::attention_in_kernel::query

namespace dsv4 {

namespace kernel = attention_in_kernel::query;

namespace {

constexpr int64_t kMapAlign = 16;   // of rows in a tensor map
constexpr int64_t kScaleAlign = 8;  // of rows of E4M4 scales: those of a slab
constexpr int64_t kCtasOfSm = 3;
// Above so many groups of 128 columns in the CTAs that an SM runs one after another, normalizing
// all latents in every CTA takes longer than a launch of its own. The instance that does so has the
// smallest tiles.
constexpr int64_t kMostGroups = 16;

gemm::Format format_of(const WeightView& w) {
  return gemm::format_of(w, {.quantize = true});
}

bool has_many_latents(const Context& context, const AttentionInArgs& args) {
  if (args.q.dim(0) > kernel::tile_tokens(format_of(args.weights.wq_b), 1)) return true;
  const int64_t heads = args.q.dim(1) + ceil_div(args.index_q.rank > 0 ? args.index_q.dim(1) : 0,
                                                 int64_t{kernel::kRanks});
  const int64_t waves =
      ceil_div(heads * kernel::kRanks, kCtasOfSm * context.device->info().num_sms);
  return args.q.dim(0) * (args.weights.wq_b.k / kernel::kGroup) * waves > kMostGroups;
}

// Tokens of a launch.
int64_t most_tokens(const AttentionInArgs& args) {
  return args.weights.wq_b.format == WeightFormat::kKbit ? gemm::kKbitTokens : gemm::kMaxTokens;
}

// Calls body(kernel) of an instance.
template <class Body>
void with_kernel(gemm::Format format, bool normalizes, int tokens, const Body& body) {
  gemm::with_q8_config(format, tokens, [&](auto tile) {
    constexpr int kTokens = decltype(tile)::kTokens;
    using C = kernel::Config<decltype(tile)::kFormat, kTokens>;
    if constexpr (kTokens == kernel::tile_tokens(C::kFormat, 1))
      if (normalizes) return body(kernel::query_kernel<C, true>);
    body(kernel::query_kernel<C, false>);
  });
}

// A weight in the format of wq_a.
const char* reject_weight(const WeightView& w, const WeightView& wq_a) {
  const bool kbit = w.format == WeightFormat::kKbit;
  if (w.format != wq_a.format || w.bits != wq_a.bits) return "weights of several formats";
  if (kbit ? w.bits < 4 || !w.e4m3_codebook : w.format != WeightFormat::kFp8Block)
    return "for fp8, k4-e4m3 and k5-e4m3 weights of queries";
  if (w.k % gemm::slab_columns(format_of(w)) != 0 || w.k / kernel::kGroup > kernel::kMaxGroups)
    return "wants latents of a multiple of 128 values, of bit planes 256, at most 4096";
  if (!rows_on(w.data, kMapAlign) || (kbit && !rows_on(w.scale, kScaleAlign)))
    return "rows of the weight are not 16-byte aligned, or of its scales not 8-byte";
  return nullptr;
}

}  // namespace

const char* finish_few_reject(const Context& context, const AttentionInArgs& args) {
  if (context.device->info().major != 9) return "for Hopper";
  if (context.numerics != Numerics::kOfficial) return "rounds to bf16";
  const bool any_count = context.need_batch_invariant;
  if (args.q.dim(0) > gemm::kMaxTokens && !any_count) return "for up to 64 tokens";
  const AttentionInWeights& w = args.weights;
  if (args.q.dtype != DType::kBF16 || w.q_norm.dtype != DType::kBF16)
    return "for bf16 queries and norms";
  if (!packs(w.q_norm, kernel::kLaneColumns)) return "the norm is not on 16 bytes";
  if (args.q.dim(2) != kernel::kHeadWidth || args.freqs.dim(0) != kernel::kPairs)
    return "wants heads of 512 values of which 64 rotate";
  if (const char* why = reject_weight(w.wq_b, w.wq_a)) return why;
  if (args.q.dim(0) > most_tokens(args) && !any_count) return "for up to 8 tokens";
  if (args.index_q.rank == 0) return nullptr;
  if (args.index_q.dim(0) != args.q.dim(0) && !any_count)
    return "wants indexer queries of all tokens";
  if (args.index_q.dtype != DType::kBF16 || args.index_q.dim(2) != kernel::kIndexWidth)
    return "wants bf16 indexer heads of 128 values";
  if (!packs(args.index_q, 4)) return "indexer queries are not on 8 bytes";
  return reject_weight(w.indexer.wq_b, w.wq_a);
}

namespace {

// rows: null where something else appends them
void finish_block(Device& device, const Context& context, const AttentionInArgs& args,
                  const ConstTensorView& latent, const AppendInputs* rows) {
  const int64_t t = args.q.dim(0);
  const Scratch::Scope scope(device.workspace());
  const bool normalizes = !has_many_latents(context, args);
  kernel::StoredLatents stored;
  if (!normalizes) {
    stored = kernel::make_stored_latents(format_of(args.weights.wq_b), t, latent.dim(1),
                                         [&](DType dtype, std::initializer_list<int64_t> shape) {
                                           return device.workspace().take(dtype, shape);
                                         });
    kernel::normalize(device, args, latent, stored);
  }
  if (device.is_dry_run()) return;
  kernel::Params params = kernel::make_params(args, latent, rows, make_tma_map);
  if (!normalizes) kernel::use_stored(params, stored, make_tma_map);
  const int tokens = kernel::tile_tokens(params.format, t);
  with_kernel(params.format, normalizes, tokens, [&](auto* run) {
    launch(device, "attention_in_few", run,
           {.grid = kernel::kRanks * int64_t{params.num_clusters()},
            .block = kernel::kThreads,
            .shared = kernel::Layout(params.format, tokens, params.groups, params.stages).bytes,
            .cluster = kernel::kRanks,
            .pdl = true},
           params);
  });
}

}  // namespace

bool appends_rows(const AttentionInArgs& args) {
  const int64_t t = args.q.dim(0);
  return t <= most_tokens(args) && (args.index_q.rank == 0 || args.index_q.dim(0) == t);
}

void finish_few(const Context& context, const AttentionInArgs& args, const ConstTensorView& latent,
                const AppendInputs* rows) {
  const int64_t t = args.q.dim(0), most = most_tokens(args);
  // Tokens with indexer queries; all tokens of a launch have them, or none.
  const int64_t begin = args.index_first,
                end = begin + (args.index_q.rank > 0 ? args.index_q.dim(0) : 0);
  for (int64_t first = 0, last = 0; first < t; first = last) {
    last = std::min(t, first + most);
    for (const int64_t cut : {begin, end})
      if (first < cut && cut < last) last = cut;
    AttentionInArgs block = args;
    block.q = args.q.slice(0, first, last);
    block.positions = args.positions.slice(0, first, last);
    const bool indexed = begin <= first && last <= end;
    block.index_q = indexed ? args.index_q.slice(0, first - begin, last - begin) : TensorView{};
    block.index_first = 0;
    finish_block(*context.device, context, block, latent.slice(0, first, last), rows);
  }
}

}  // namespace dsv4
