#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"

namespace dsv4 {
namespace {

// A call without lists and without max_logits.
SparseMlaArgs call_of(bench::Arena& arena, const test::Shape& shape) {
  bench::Random random(1);
  test::Outputs whole;
  SparseMlaArgs args = test::random_sparse_mla(arena, random, shape, whole);
  args.max_logits = {};
  return args;
}

// Window indices are consecutive, as in prefill and decode; compressed indices are a random
// ascending choice from a pool four times as large, as from the indexer, changing slowly from query
// to query.
struct SparseMlaCase {
  bench::Arena arena;
  SparseMlaArgs args;

  SparseMlaCase(int64_t t, int64_t h, int64_t window, int64_t compressed, const KvLayout& layout)
      : args(call_of(arena, {.t = t, .h = h, .layout = layout, .dtype = DType::kBF16})) {
    bench::Random random(2);
    const TensorView window_rows = arena.input(DType::kI32, {t, 1, window});
    const TensorView compressed_rows = arena.input(DType::kI32, {t, 1, compressed});
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < window; ++j)
        window_rows.row<int32_t>(i)[j] = static_cast<int32_t>(i + j);
      for (int64_t j = 0; j < compressed; ++j) {
        const bool keep = i > 0 && random.uniform() < 0.97;
        compressed_rows.row<int32_t>(i)[j] = keep ? compressed_rows.row<int32_t>(i - 1)[j]
                                                  : static_cast<int32_t>(4 * j + random.below(4));
      }
    }
    args.window = {.pool = filled(random, layout, window + t), .indices = window_rows};
    args.compressed = {.pool = filled(random, layout, 4 * compressed), .indices = compressed_rows};
  }

  KvPool filled(bench::Random& random, const KvLayout& layout, int64_t rows) {
    const KvInsertArgs insert =
        test::filled_pool<KvInsertArgs>(arena, random, layout, rows, DType::kF32);
    kv_insert(Context{}, insert);
    return insert.pool;
  }
};

void add(int64_t t, int64_t h, int64_t window, int64_t compressed, KvLayout layout) {
  bench::register_impls<SparseMlaArgs>(
      fmt::format("sparse_mla/t{} h{} d{} {}+{} rows", t, h, layout.width(), window, compressed),
      sparse_mla,
      [=] { return std::make_shared<SparseMlaCase>(t, h, window, compressed, layout); });
}

// What follows are the peer's decode and prefill shapes (docs/spec/attention-kernels.md 1.7, 1.8).

constexpr int64_t kRequests = 128;  // that a pool has room for

// Random bytes that decode to finite values of ordinary size in any order: e4m3 codes
// below 2, scales of 2^-6, bf16s between 1/4 and 1/2.
void fill_entry(const KvLayout& layout, uint8_t* page, int64_t entries, int64_t i, uint64_t seed) {
  uint8_t* codes = page + layout.entry_offset(i);
  for (int c = 0; c < layout.nope; c += 8) {
    const uint64_t bits = random_bits(seed, static_cast<uint64_t>(c)) & 0xbfbfbfbfbfbfbfbfull;
    std::memcpy(codes + c, &bits, 8);
  }
  uint8_t* scales = page + layout.scale_offset(entries, i);
  constexpr float kScale = 0x1p-6f;
  for (int g = 0; g < layout.num_scales(); ++g) {
    if (layout.v32()) {
      std::memcpy(scales + 4 * g, &kScale, 4);
    } else {
      scales[g] = 127 - 6;
    }
  }
  uint8_t* rope = page + layout.rope_offset(i);
  for (int c = 0; c < layout.rope; c += 4) {
    const uint64_t bits = random_bits(seed, static_cast<uint64_t>(layout.nope + c));
    const uint64_t four = (bits & 0x807f807f807f807full) | 0x3e803e803e803e80ull;
    std::memcpy(rope + 2 * c, &four, 8);
  }
}

// One pool per format and page size serves all cases: gigabytes take seconds to fill.
const KvPool& shared_pool(const KvLayout& layout, int page_entries, int64_t tokens) {
  struct Shared {
    bench::Tensor pages;
    KvPool pool;
  };
  static std::map<std::pair<KvRowFormat, int>, Shared> pools;
  const auto [at, made] = pools.try_emplace({layout.format, page_entries});
  if (made) {
    Shared& shared = at->second;
    const int64_t pages = kRequests * tokens / page_entries;
    shared.pages = bench::Tensor(DType::kU8, {pages, layout.page_bytes(page_entries)});
    shared.pool = {.pages = shared.pages, .layout = layout, .page_entries = page_entries};
#pragma omp parallel for
    for (int64_t row = 0; row < pages * page_entries; ++row) {
      fill_entry(layout, shared.pages.view().row<uint8_t>(row / page_entries), page_entries,
                 row % page_entries, static_cast<uint64_t>(row));
    }
  }
  return at->second.pool;
}

struct ListShape {
  int64_t topk = 0;
  int page_entries = 64;
};

// Calls cycle through several sets of random indices of different requests: 256 MB of entries, or
// 64 sets.
struct DecodeCase {
  struct Set {
    bench::Tensor window, compressed;
  };
  bench::Arena arena;
  std::vector<Set> sets;
  size_t current = 0;
  SparseMlaArgs args;

  DecodeCase(int64_t b, int64_t s_q, int64_t h, const KvLayout& layout, const ListShape& window,
             const ListShape& compressed)
      : args(call_of(
            arena,
            {.t = b, .h = h, .layout = layout, .dtype = DType::kBF16, .s_q = s_q, .d_v = 512})) {
    const int64_t tokens = layout.v32() ? 32768 : 16384;
    args.window.pool = shared_pool(layout, window.page_entries, tokens);
    if (compressed.topk > 0)
      args.compressed.pool = shared_pool(layout, compressed.page_entries, tokens);
    const int64_t bytes = b * s_q * (window.topk + compressed.topk) * layout.row_bytes();
    const int64_t count = std::clamp<int64_t>(ceil_div(int64_t{256} << 20, bytes), 2, 64);
    for (int64_t i = 0; i < count; ++i) {
      sets.push_back({random_rows(b, s_q, window.topk, tokens, i), {}});
      if (compressed.topk > 0) {
        sets.back().compressed = random_rows(b, s_q, compressed.topk, tokens, count + i);
      }
    }
    next();
  }

  void next() {
    args.window.indices = sets[current].window;
    if (!sets[current].compressed.empty()) args.compressed.indices = sets[current].compressed;
    current = (current + 1) % sets.size();
  }

  // Rows of request (set * b + i) mod 128 for request i.
  static bench::Tensor random_rows(int64_t b, int64_t s_q, int64_t topk, int64_t tokens,
                                   int64_t set) {
    bench::Tensor rows(DType::kI32, {b, s_q, topk});
    for (int64_t i = 0; i < b * s_q * topk; ++i) {
      const int64_t request = (set * b + i / (s_q * topk)) % kRequests;
      const uint64_t draw = random_bits(static_cast<uint64_t>(set), static_cast<uint64_t>(i));
      rows.as<int32_t>()[i] = static_cast<int32_t>(
          request * tokens + static_cast<int64_t>(draw % static_cast<uint64_t>(tokens)));
    }
    return rows;
  }
};

// Queries of one prompt over a bf16 latent.
struct PrefillCase {
  bench::Arena arena;
  SparseMlaArgs args;

  PrefillCase(int64_t s_q, int64_t s_kv, int64_t h, int d, int64_t topk)
      : args(call_of(arena, {.t = s_q,
                             .h = h,
                             .layout = {.nope = d - 64, .rope = 64},
                             .dtype = DType::kBF16,
                             .d_v = 512})) {
    bench::Random random(2);
    const TensorView latent = arena.input(DType::kBF16, {s_kv, d});
    const TensorView rows = arena.input(DType::kI32, {s_q, 1, topk});
    fill_normal(latent, random, 0.1);
    for (int64_t i = 0; i < s_q * topk; ++i) {
      const uint64_t draw = random_bits(7, static_cast<uint64_t>(i));
      rows.as<int32_t>()[i] = static_cast<int32_t>(draw % static_cast<uint64_t>(s_kv));
    }
    const KvLayout layout{.nope = d - 64, .rope = 64};
    args.window = {.pool = {.pages = latent, .layout = layout, .page_entries = 1}, .indices = rows};
  }
};

void add_decode(const char* what, int64_t b, int64_t s_q, int64_t h, const KvLayout& layout,
                const ListShape& window, const ListShape& compressed = {}) {
  bench::register_impls<SparseMlaArgs>(
      fmt::format("sparse_mla/{} b{} s_q{} h{} d{} {}+{} rows", what, b, s_q, h, layout.width(),
                  window.topk, compressed.topk),
      sparse_mla,
      [=] { return std::make_shared<DecodeCase>(b, s_q, h, layout, window, compressed); });
}

void add_prefill(int64_t s_q, int64_t s_kv, int64_t h, int d, int64_t topk) {
  bench::register_impls<SparseMlaArgs>(
      fmt::format("sparse_mla/prefill s_q{} s_kv{} h{} d{} {} rows", s_q, s_kv, h, d, topk),
      sparse_mla, [=] { return std::make_shared<PrefillCase>(s_q, s_kv, h, d, topk); });
}

void add_peer_shapes() {
  const ListShape window{128, 256};
  for (const int64_t s_q : {1, 2}) {
    for (const int64_t b : {1, 8, 32, 64, 128}) {
      add_decode("Flash", b, s_q, 64, {}, window, {512, 64});
    }
  }
  for (const int64_t b : {32, 128}) add_decode("Pro", b, 1, 128, {}, window, {1024, 64});
  add_decode("Pro", 128, 2, 128, {}, window, {1024, 64});
  add_decode("V3.2", 128, 2, 128, kV32Layout, {2048, 64});
  for (const int64_t b : {1, 32}) add_decode("V3.2", b, 1, 128, kV32Layout, {32768, 64});
  for (const int64_t h : {8, 16, 32}) add_decode("few heads", 32, 1, h, {}, window, {512, 64});
  for (const int64_t b : {1, 32, 128}) add_decode("window", b, 1, 64, {}, window);
  add_prefill(4096, 8192, 128, 576, 2048);
  add_prefill(1024, 65536, 128, 576, 32768);
  add_prefill(4096, 8192, 64, 512, 512);
}

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    add(t, 64, 128, 512, {});
    add(t, 4, 128, 64, {});
    add(t, 4, 128, 64, {.nope = 64, .rope = 32});
  }
  if (bench::full_size()) add_peer_shapes();
  return true;
}();

}  // namespace
}  // namespace dsv4
