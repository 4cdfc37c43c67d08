// NotFinite: the Error for NaN or infinity where the network needs a number. The engine catches it
// to add the layer and the op (engine/check_numbers.h).

#pragma once

#include "dsv4/base/error.h"

namespace dsv4 {

class NotFinite : public Error {
 public:
  explicit NotFinite(const std::string& message) : Error(ErrorCode::kBadInput, message) {}
};

}  // namespace dsv4
