// Random images in an expert store, and which of them are not where a table of addresses says.

#pragma once

#include <cstring>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/engine/expert_store.h"

namespace dsv4::test {

class StoredImages {
 public:
  // Fills the homes and the first places of all experts, as a loader does.
  explicit StoredImages(const ExpertStore& store) : experts_(store.places().experts) {
    Rng rng(3);
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
    for (int64_t e = 0; e < experts_; ++e) {
      const auto& image = images_[static_cast<size_t>(layer * experts_ + e)];
      const auto* at = reinterpret_cast<const std::byte*>(addresses[e]);
      if (std::memcmp(at, image.data(), image.size()) != 0) return e;
    }
    return -1;
  }

 private:
  int64_t experts_;
  std::vector<std::vector<std::byte>> images_;  // [layers * e]
};

}  // namespace dsv4::test
