// The table of a checkpoint's tensors that convert_list() takes.

#pragma once

#include "dsv4/convert/convert_list.h"
#include "dsv4/loader/checkpoint.h"

namespace dsv4 {

inline StoredTensors stored_tensors(const Checkpoint& checkpoint) {
  StoredTensors tensors;
  for (const auto& [name, stored] : checkpoint.tensors())
    tensors.emplace_hint(tensors.end(), name, stored.view);
  return tensors;
}

}  // namespace dsv4
