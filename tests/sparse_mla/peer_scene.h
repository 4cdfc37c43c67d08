// Inputs of sparse_mla.h by the rules of the peer's tests (docs/spec/attention-kernels.md 1.8), for
// peer_grid_slow_test.cc: every byte of a pool that no index refers to is NaN, q and
// caches have gaps, requests have their own topk_length, pages are in random order, and indices
// past a list's topk_length have any value.
//
// q ~ N(0, 1) and rows ~ N(0, 1) / 10, both clamped to +-1. They are drawn from libraries of some
// thousand rows that are made once; a pool row is a copy of the one that its index hashes to.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"
#include "tests/harness/gpu.h"
#include "tests/harness/twin.h"

namespace dsv4::test {

// One list of every query: at most s_k tokens per request, topk indices.
struct PeerList {
  int64_t s_k = 0, topk = 0;
  int page = 1;          // rows of a page
  bool lengths = false;  // topk_length; later indices are garbage
};

struct PeerCase {
  int d = 512;  // 576: V3.2 rows, 512: V4 rows; values are the first 512
  int64_t b = 1, s_q = 1;
  int64_t heads = 128;
  PeerList main, extra{};     // extra.topk = 0: none
  bool varlen = false;        // requests of different lengths, some of none
  bool sink = true;           // some of them +-inf
  bool prefill = false;       // a bf16 latent [s_k, d] that all requests share; s_q = 1
  bool all_invalid = false;   // no id that the pool has
  bool same_queries = false;  // q has stride 0 from request to request: large b
};

inline constexpr int kPeerValues = 512;

// Rows that pools are filled from, in the three formats.
class PeerLibrary {
 public:
  static constexpr int64_t kRows = 2048;

  static const PeerLibrary& of(int d) {
    static const PeerLibrary v4(512), v32(576);
    return d == 512 ? v4 : v32;
  }
  static KvLayout layout(int d) { return d == 512 ? KvLayout{} : kV32Layout; }

  const uint8_t* packed(uint64_t hash) const { return packed_.data() + at(hash, packed_bytes_); }
  const uint16_t* latent(uint64_t hash) const { return latent_.data() + at(hash, d_); }
  const uint16_t* query(uint64_t hash) const { return queries_.data() + at(hash, d_); }

 private:
  explicit PeerLibrary(int d) : d_(d), packed_bytes_(layout(d).page_bytes(1)) {
    packed_.resize(static_cast<size_t>(kRows * packed_bytes_));
    latent_.resize(static_cast<size_t>(kRows * d));
    queries_.resize(latent_.size());
    Rng rng(static_cast<uint64_t>(d));
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t i = 0; i < kRows; ++i) {
      for (float& v : row) v = static_cast<float>(std::clamp(rng.normal() / 10, -1.0, 1.0));
      pack_kv_entry(layout(d), row.data(), packed_.data() + i * packed_bytes_, 1, 0);
      std::transform(row.begin(), row.end(), latent_.begin() + i * d, f32_to_bf16);
      for (float& v : row) v = static_cast<float>(std::clamp(rng.normal(), -1.0, 1.0));
      std::transform(row.begin(), row.end(), queries_.begin() + i * d, f32_to_bf16);
    }
  }
  static size_t at(uint64_t hash, int64_t stride) {
    return static_cast<size_t>(static_cast<int64_t>(hash % kRows) * stride);
  }

  int64_t d_, packed_bytes_;
  std::vector<uint8_t> packed_;
  std::vector<uint16_t> latent_, queries_;
};

// i -> (a i + c) mod n, each value once.
class Shuffle {
 public:
  Shuffle(int64_t n, uint64_t seed) : n_(std::max<int64_t>(n, 1)) {
    c_ = static_cast<int64_t>(random_bits(seed, 0) % static_cast<uint64_t>(n_));
    a_ = 1 + static_cast<int64_t>(random_bits(seed, 1) % static_cast<uint64_t>(n_));
    while (std::gcd(a_, n_) != 1) ++a_;
  }
  int64_t operator()(int64_t i) const { return (a_ * i + c_) % n_; }

 private:
  int64_t n_, a_, c_;
};

// A pool and its lists.
class PeerSegment {
 public:
  void make(const PeerCase& test, const PeerList& list, uint64_t seed) {
    test_ = &test, list_ = &list, seed_ = seed;
    const int64_t requests = test.prefill ? 1 : test.b;
    request_pages_ = ceil_div(list.s_k, list.page);
    pool_.layout = PeerLibrary::layout(test.d);
    pool_.page_entries = list.page;
    const int64_t gap = test.prefill ? 64 : pool_.layout.entry_bytes();
    const int64_t row = test.prefill ? test.d : pool_.layout.page_bytes(list.page);
    pages_.reshape(test.prefill ? DType::kBF16 : DType::kU8,
                   {requests * request_pages_, row + gap});
    row_values_ = row;
    rows_.reshape(DType::kI32, {test.b, test.s_q, list.topk});
    lengths_.reshape(DType::kI32, {test.b});
    named_.assign(static_cast<size_t>(num_rows()), 0);
#pragma omp parallel for
    for (int64_t i = 0; i < test.b; ++i) list_request(i);
    fill_pages();
    pages_.upload(), rows_.upload(), lengths_.upload();
  }

  // Valid indices of query `query`.
  int64_t valid(int64_t query) const {
    const int32_t length = lengths_.host().as<int32_t>()[query / test_->s_q];
    const int32_t* ids = rows_.host().as<int32_t>() + query * list_->topk;
    return std::count_if(ids, ids + std::min<int64_t>(length, list_->topk),
                         [&](int32_t id) { return id >= 0 && id < num_rows(); });
  }

  KvList list(bool on_device) const {
    KvList list{.pool = pool_};
    const auto place = [&](const Twin& twin) { return on_device ? twin.device() : twin.host(); };
    list.pool.pages = place(pages_).slice(1, 0, row_values_);
    const TensorView rows = place(rows_);
    list.indices = rows;
    if (list_->lengths) list.topk_length = place(lengths_);
    return list;
  }

 private:
  int64_t num_rows() const {
    return pages_.host().dim(0) * pool_.page_entries;
  }

  // The pool row of token `token` of a request: pages are assigned at random.
  int64_t place_of(int64_t request, int64_t token, const Shuffle& pages) const {
    if (test_->prefill) return token;
    const int64_t page = request * request_pages_ + token / list_->page;
    return pages(page) * list_->page + token % list_->page;
  }

  // An index that must not be dereferenced.
  int32_t garbage(uint64_t bits) const {
    const int64_t choices[] = {static_cast<int64_t>(bits % static_cast<uint64_t>(num_rows())),
                               num_rows(), INT32_MAX, INT32_MIN, -1};
    return static_cast<int32_t>(choices[bits >> 32 & 3]);
  }
  // An invalid index: device implementations also skip indices past the pool, the CPU one throws.
  int32_t invalid(uint64_t bits) const {
    if (!test_->prefill || gpu() == nullptr) return bits % 2 == 0 ? -1 : -2;
    const int64_t choices[] = {-1, INT32_MIN, INT32_MAX, num_rows()};
    return static_cast<int32_t>(choices[bits % 4]);
  }

  void list_request(int64_t request) {
    const uint64_t seed = mix64(seed_ + static_cast<uint64_t>(request) * 4096);
    const Shuffle pages(pages_.host().dim(0), seed_);
    const int64_t topk = list_->topk;
    // Requests 2 and 3 of a varied batch are empty and full.
    int64_t tokens = list_->s_k, length = topk;
    if (test_->varlen) tokens = request % 32 == 2 ? 0 : 1 + below(seed, 1, list_->s_k);
    if (list_->lengths)
      length = request % 32 == 1 ? 0 : request % 32 == 3 ? topk : below(seed, 2, topk + 1);
    lengths_.host().as<int32_t>()[request] = static_cast<int32_t>(length);
    for (int64_t slot = 0; slot < test_->s_q; ++slot) {
      const uint64_t own = mix64(seed + 17 + static_cast<uint64_t>(slot));
      const Shuffle slots(topk, own), choice(tokens, own + 1);
      int32_t* ids = rows_.host().as<int32_t>() + (request * test_->s_q + slot) * topk;
      for (int64_t j = 0; j < topk; ++j) {
        const uint64_t bits = random_bits(own, static_cast<uint64_t>(j) + 2);
        const int64_t rank = slots(j);
        if (j >= length) {
          ids[j] = garbage(bits);
        } else if (test_->all_invalid || rank >= tokens || bits >> 58 == 0) {  // one of 64
          ids[j] = invalid(bits);
        } else {
          const int64_t row = place_of(request, choice(rank), pages);
          ids[j] = static_cast<int32_t>(row);
          uint8_t& named = named_[static_cast<size_t>(row)];
#pragma omp atomic write  // in prefill all requests name rows of one latent
          named = 1;
        }
      }
    }
  }

  static int64_t below(uint64_t seed, uint64_t counter, int64_t n) {
    return static_cast<int64_t>(random_bits(seed, counter) % static_cast<uint64_t>(n));
  }

  void fill_pages() {
    const TensorView& pages = pages_.host();
    const PeerLibrary& library = PeerLibrary::of(test_->d);
    const int entries = pool_.page_entries;
#pragma omp parallel for
    for (int64_t page = 0; page < pages.dim(0); ++page) {
      std::byte* to = pages.data + page * pages.row_stride() * item_bytes(pages.dtype);
      std::memset(to, 0xff, static_cast<size_t>(pages.dim(1) * item_bytes(pages.dtype)));
      for (int entry = 0; entry < entries; ++entry) {
        const int64_t row = page * entries + entry;
        if (named_[static_cast<size_t>(row)] == 0) continue;
        const uint64_t hash = random_bits(seed_, static_cast<uint64_t>(row));
        if (test_->prefill) {
          std::memcpy(to, library.latent(hash), static_cast<size_t>(test_->d) * 2);
        } else {
          copy_entry(library.packed(hash), reinterpret_cast<uint8_t*>(to), entry);
        }
      }
    }
  }

  // The only entry of `from` becomes entry `entry` of a page.
  void copy_entry(const uint8_t* from, uint8_t* page, int entry) const {
    const KvLayout& layout = pool_.layout;
    const auto copy = [&](int64_t to_offset, int64_t from_offset, int64_t bytes) {
      std::memcpy(page + to_offset, from + from_offset, static_cast<size_t>(bytes));
    };
    copy(layout.entry_offset(entry), 0, layout.nope);
    copy(layout.rope_offset(entry), layout.rope_offset(0), 2 * layout.rope);
    copy(layout.scale_offset(pool_.page_entries, entry), layout.scale_offset(1, 0),
         layout.scale_bytes());
  }

  const PeerCase* test_ = nullptr;
  const PeerList* list_ = nullptr;
  uint64_t seed_ = 0;
  int64_t request_pages_ = 0, row_values_ = 0;
  KvPool pool_;
  Twin pages_, rows_, lengths_;
  std::vector<uint8_t> named_;  // by row id
};

// All inputs of a case. The memory is reused by the next case.
class PeerScene {
 public:
  static constexpr int64_t kGap = 64;  // values between heads of q

  void make(const PeerCase& test, uint64_t seed) {
    test_ = test;
    main_.make(test_, test_.main, mix64(2 * seed));
    if (test_.extra.topk > 0) extra_.make(test_, test_.extra, mix64(2 * seed + 1));
    make_queries(seed);
    make_sink(seed);
  }

  int64_t queries() const { return test_.b * test_.s_q; }
  int64_t valid(int64_t query) const {
    return main_.valid(query) + (test_.extra.topk > 0 ? extra_.valid(query) : 0);
  }

  // The first `heads` heads of the scene, without outputs.
  SparseMlaArgs args(int64_t heads, bool on_device) const {
    const auto place = [&](const Twin& twin) { return on_device ? twin.device() : twin.host(); };
    TensorView q = place(q_).slice(3, 0, test_.d).slice(2, 0, heads);
    q.shape[0] = test_.b;
    if (test_.same_queries) q.stride[0] = 0;
    SparseMlaArgs args{.q = q,
                       .window = main_.list(on_device),
                       .compressed = {},
                       .scale = static_cast<float>(std::pow(test_.d, -0.55)),
                       .out = {},
                       .lse = {},
                       .max_logits = {}};
    if (test_.extra.topk > 0) args.compressed = extra_.list(on_device);
    if (test_.sink) args.sink = place(sink_).slice(0, 0, heads);
    return args;
  }

 private:
  void make_queries(uint64_t seed) {
    const PeerLibrary& library = PeerLibrary::of(test_.d);
    const int64_t b = test_.same_queries ? 1 : test_.b;
    q_.reshape(DType::kBF16, {b, test_.s_q, test_.heads, test_.d + kGap});
    const int64_t width = test_.d + kGap;
#pragma omp parallel for
    for (int64_t i = 0; i < b * test_.s_q * test_.heads; ++i) {
      uint16_t* to = q_.host().as<uint16_t>() + i * width;
      const uint16_t* from = library.query(random_bits(seed, static_cast<uint64_t>(i)));
      std::memcpy(to, from, static_cast<size_t>(test_.d) * 2);
      std::fill(to + test_.d, to + width, uint16_t{0xffff});
    }
    q_.upload();
  }

  void make_sink(uint64_t seed) {
    sink_.reshape(DType::kF32, {test_.heads});
    Rng rng(seed);
    for (int64_t h = 0; h < test_.heads; ++h) {
      const int64_t kind = rng.below(16);
      const float infinity = std::numeric_limits<float>::infinity();
      const auto value = static_cast<float>(rng.normal());
      sink_.host().as<float>()[h] = kind == 0 ? infinity : kind == 1 ? -infinity : value;
    }
    sink_.upload();
  }

  PeerCase test_;
  PeerSegment main_, extra_;
  Twin q_, sink_;
};

}  // namespace dsv4::test
