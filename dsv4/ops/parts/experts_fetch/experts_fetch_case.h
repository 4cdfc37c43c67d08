// A layer whose experts are in host memory, for the tests of every implementation.

#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "dsv4/ops/parts/experts_fetch/choices_test.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

struct FetchShape {
  int64_t experts, fixed, slots, transient, bytes;
  int64_t t, k;
};

struct FetchCase {
  Arena arena;
  FetchShape shape;
  std::vector<std::vector<std::byte>> images;  // [e]: what each expert's bytes are
  ExpertsFetchArgs args;

  explicit FetchCase(const FetchShape& s) : shape(s) {
    Rng rng(static_cast<uint64_t>(s.experts * 1000 + s.bytes));
    const TensorView homes = arena.input(DType::kI64, {s.experts});
    args = {.experts = arena.input(DType::kI32, {s.t, s.k}),
            .homes = homes,
            .memory = arena.inout(DType::kU8, {s.fixed + s.slots, s.bytes}),
            .fixed = s.fixed,
            .transient = arena.inout(DType::kU8, {s.transient, s.bytes}),
            .places = arena.inout(DType::kI64, {s.experts}),
            .uses = arena.inout(DType::kI32, {s.experts, 2}),
            .place_of = arena.inout(DType::kI32, {s.experts}),
            .expert_in = arena.inout(DType::kI32, {s.fixed + s.slots + s.transient}),
            .step = arena.inout(DType::kI32, {1}),
            .totals = arena.inout(DType::kI64, {s.experts}),
            .counters = arena.inout(DType::kI64, {4}),
            .turn_of = arena.inout(DType::kI32, {s.experts})};
    std::fill_n(args.counters.as<int64_t>(), 4, 0);
    for (const TensorView& view : {args.memory, args.transient})
      std::fill_n(view.as<uint8_t>(), view.numel(), uint8_t{0xff});
    const experts_fetch_kernel::LayerPlaces layer = experts_fetch_kernel::layer_of(args);
    layer.clear();
    for (int64_t e = 0; e < s.experts; ++e) {
      std::vector<std::byte>& image = images.emplace_back(static_cast<size_t>(s.bytes));
      for (std::byte& byte : image) byte = static_cast<std::byte>(rng.below(256));
      const bool is_fixed = e < s.fixed;
      const TensorView home =  // each in an allocation of its own
          is_fixed ? args.memory.slice(0, e, e + 1) : arena.input(DType::kU8, {1, s.bytes});
      std::memcpy(home.data, image.data(), image.size());
      homes.as<int64_t>()[e] = is_fixed ? 0 : reinterpret_cast<int64_t>(home.data);
      args.places.as<int64_t>()[e] = reinterpret_cast<int64_t>(home.data);
      if (is_fixed) layer.put(static_cast<int>(e), static_cast<int>(e));
    }
  }

  void choose(const std::vector<int32_t>& ids) {
    std::copy(ids.begin(), ids.end(), const_cast<int32_t*>(args.experts.as<int32_t>()));
  }
  // What is wrong after a call; empty: nothing. Every expert, chosen or not, is where its address
  // says.
  std::string broken() const {
    for (int64_t e = 0; e < shape.experts; ++e) {
      const auto* at = reinterpret_cast<const std::byte*>(args.places.as<int64_t>()[e]);
      if (std::memcmp(at, images[static_cast<size_t>(e)].data(),
                      static_cast<size_t>(shape.bytes)) != 0)
        return "the bytes of expert " + std::to_string(e) + " are not at its address";
    }
    return {};
  }
};

}  // namespace dsv4::test
