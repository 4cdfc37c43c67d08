#include "dsv4/ops/op.h"

namespace dsv4 {

const char* name(Numerics numerics) {
  return numerics == Numerics::kOfficial ? "official" : "exact";
}

const char* name(Arch arch) {
  switch (arch) {
    case Arch::kCpu:
      return "cpu";
    case Arch::kCuda:
      return "cuda";
    case Arch::kSm90:
      return "sm90";
  }
  return "unknown";
}

}  // namespace dsv4
