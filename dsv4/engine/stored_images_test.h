// What tests of expert stores share: random images in one, and which of them are not where a table
// of addresses says; random orders; a store for dry runs, whose experts nothing reads.

#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/engine/expert_store.h"
#include "dsv4/model/model.h"

namespace dsv4::test {

class StoredImages {
 public:
  // Fills the homes and the first places of all experts, as a loader does.
  explicit StoredImages(const ExpertStore& store, uint64_t seed = 3)
      : experts_(store.places().experts) {
    Rng rng(seed);
    for (int64_t l = 0; l < store.places().layers(); ++l) {
      const int64_t bytes = store.places().place_bytes[static_cast<size_t>(l)];
      for (int64_t e = 0; e < experts_; ++e) {
        auto& image = images_.emplace_back(static_cast<size_t>(bytes));
        for (std::byte& byte : image) byte = static_cast<std::byte>(rng.below(256));
        for (std::byte* to : {store.home(l, e), store.first_place(l, e)})
          if (to != nullptr) std::memcpy(to, image.data(), image.size());
      }
    }
  }

  // The first expert whose bytes are not at its address, [e]; -1: none.
  int64_t broken(int64_t layer, const int64_t* addresses) const {
    for (int64_t e = 0; e < experts_; ++e)
      if (!is_at(layer, e, addresses[e])) return e;
    return -1;
  }
  bool is_at(int64_t layer, int64_t expert, int64_t address) const {
    const auto& image = images_[static_cast<size_t>(layer * experts_ + expert)];
    return std::memcmp(reinterpret_cast<const std::byte*>(address), image.data(), image.size()) ==
           0;
  }

 private:
  int64_t experts_;
  std::vector<std::vector<std::byte>> images_;  // [layers * e]
};

// Which experts begin in device memory, of layers that all have so many.
inline ExpertOrder random_order(Rng& rng, int64_t layers, int64_t experts) {
  ExpertOrder order(static_cast<size_t>(layers));
  for (std::vector<int32_t>& layer : order) {
    for (int32_t e = 0; e < experts; ++e) layer.push_back(e);
    for (size_t i = layer.size(); i > 1; --i)
      std::swap(layer[i - 1], layer[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
  return order;
}

// Memory that is handed out and never touched, but for the tables of a store.
class ReservedMemory final : public Memory {
 public:
  std::byte* allocate(int64_t bytes) override { return host_memory().allocate(bytes); }
  void release(std::byte* data) noexcept override { host_memory().release(data); }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    host_memory().upload(to, from, bytes);
  }
  void download(std::byte*, const std::byte*, int64_t) override {}
};

// The model fetches from the store that is returned.
inline std::shared_ptr<ExpertStore> fetch_from_reserved(Model& model, const ExpertPlaces& places) {
  static ReservedMemory memory;
  const auto store = std::make_shared<ExpertStore>(places, memory, memory);
  std::vector<ExpertsFetchArgs> fetch;
  for (int64_t l = 0; l < places.layers(); ++l) fetch.push_back(store->layer(l));
  model.fetch_experts(fetch, store);
  return store;
}

}  // namespace dsv4::test
