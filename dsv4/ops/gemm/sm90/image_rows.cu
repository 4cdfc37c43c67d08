#include "dsv4/ops/gemm/sm90/image_rows.h"

#include <algorithm>
#include <array>

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/experts/list_pairs.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/call.h"

namespace dsv4::gemm::image_rows {
namespace {

using Launch = void (*)(Device& device, const Params& params);

// By KbitImage::kind(); there is none of K = 5.
template <bool kGateUp, int kColumns>
constexpr std::array<Launch, KbitImage::kKinds> kLaunches{
    launch_product<2, ImageScale::kE4M4, kGateUp, kColumns>,
    launch_product<3, ImageScale::kE4M4, kGateUp, kColumns>,
    launch_product<4, ImageScale::kE4M4, kGateUp, kColumns>,
    nullptr,
    launch_product<4, ImageScale::kUe8m0, kGateUp, kColumns>,
    launch_product<4, ImageScale::kE4M3, kGateUp, kColumns>};

template <bool kGateUp>
void launch_kind(Device& device, const WeightView& weight, const Params& params) {
  const auto kind = static_cast<size_t>(image_of_format(weight).kind());
  const auto& launches = params.columns <= kFewColumns ? kLaunches<kGateUp, kFewColumns>
                                                       : kLaunches<kGateUp, kMaxColumns>;
  launches[kind](device, params);
}

}  // namespace

const char* reject_weight(const WeightView& w) {
  const bool fp4 = w.format == WeightFormat::kMxfp4 || w.format == WeightFormat::kNvfp4;
  if (!fp4 && w.format != WeightFormat::kKbit) return "for images of k-bit and FP4 weights";
  if (!fp4 && !w.e4m3_codebook) return "the codebook is not e4m3";
  if (!fp4 && w.bits > 4) return "K = 5";
  if (w.n == 0 || w.k == 0) return "for weights that are not empty";
  if (w.k > kMaxColumns) return "more than 8192 columns";
  return reinterpret_cast<uintptr_t>(w.data.data) % 16 == 0 ? nullptr
                                                            : "images are not 16-byte aligned";
}

const char* reject_rows(const Device& device, const ConstTensorView& x) {
  if (device.info().major != 9) return "for Hopper";
  if (x.dtype != DType::kBF16) return "x is not bf16";
  return rows_on(x, 16) ? nullptr : "rows of x are not 16-byte aligned";
}

void launch_list(Device& device, const experts::Choices& choices, const experts::PairLists& lists) {
  launch(device, "image_list", experts::list_pairs_kernel<kMaxImages>,
         {.block = experts::kListThreads, .pdl = true}, choices, lists);
}

void launch_gate_up(Device& device, const WeightView& gate, const Params& params) {
  launch_kind<true>(device, gate, params);
}

void launch_rows(Device& device, const WeightView& weight, const Params& params) {
  launch_kind<false>(device, weight, params);
}

void run_dense(Device& device, const WeightView& weight, const ConstTensorView& x,
               const TensorView& out) {
  const int64_t most = most_dense_rows(weight);
  for (int64_t m = 0; m < x.dim(0); m += most) {
    const int64_t end = std::min(x.dim(0), m + most);
    launch_rows(
        device, weight,
        make_dense_params(weight, x.slice(0, m, end), out.slice(0, m, end), device.info().num_sms));
  }
}

}  // namespace dsv4::gemm::image_rows
