// Implements write_safetensors().

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/loader/safetensors_layout.h"

namespace dsv4 {

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, ConstTensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, TensorMeta>> metas;
  for (const auto& [name, view] : tensors) {
    DSV4_CHECK(view.is_contiguous(), "{}: {} is not contiguous", name, to_string(view));
    DSV4_CHECK(!view.empty() || view.numel() == 0, "{}: no data", name);
    metas.emplace_back(name, view);
  }
  const SafetensorsLayout layout = layout_safetensors(metas, metadata);

  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ConstTensorView& view = tensors[i].second;
    file.write_at(layout.offset[i], {view.data, static_cast<size_t>(view.bytes())});
  }
  file.commit();
}

}  // namespace dsv4
