// Launches the kernel of sample.h with a team of kCtas CTAs per row.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/sample/kernel.cuh"

namespace dsv4::sample_kernel {

// Ids of a CTA. The slices of a cluster begin on 16 bytes of the row.
template <int kCtas>
constexpr int64_t slice_of(int64_t v) {
  return align_up(ceil_div(v, kCtas), 4);
}

template <int kCtas>
constexpr int64_t shared_bytes(int64_t v) {
  const int64_t copy = kCtas > 1 ? slice_of<kCtas>(v) * static_cast<int64_t>(sizeof(float)) : 0;
  return static_cast<int64_t>(sizeof(Shared<kCtas>)) + copy;
}

template <int kCtas>
void launch_sample(const Context& context, const SampleArgs& args) {
  Device& device = *context.device;
  const int64_t rows = args.logits.dim(0), v = args.logits.dim(1);
  const Scratch::Scope scope(device.workspace());
  Inputs in{.logits = args.logits.as<float>(),
            .stride = args.logits.row_stride(),
            .v = static_cast<int>(v),
            .slice = static_cast<int>(slice_of<kCtas>(v)),
            .bits = mass_bits(v),
            .params = args.params.data(),
            .steps = args.steps.data(),
            .terms = args.terms.data(),
            .term_begin = args.term_begin.empty() ? nullptr : args.term_begin.data()};
  if (!args.mask.empty()) {
    in.mask = args.mask.as<uint32_t>();
    in.mask_stride = args.mask.row_stride();
  }
  if (kCtas == 1 && (in.mask != nullptr || in.term_begin != nullptr))
    in.adjusted = device.workspace().take(DType::kF32, {rows, v}).template as<float>();
  Outputs out{.ids = args.ids.as<int32_t>(), .logprobs = args.logprobs.as<float>()};
  if (!args.top_ids.empty()) {
    out.top_ids = args.top_ids.as<int32_t>();
    out.top_logprobs = args.top_logprobs.as<float>();
    out.top_ids_stride = args.top_ids.row_stride();
    out.top_logprobs_stride = args.top_logprobs.row_stride();
    out.top = static_cast<int>(args.top_ids.dim(1));
  }
  launch(device, "sample", sample_kernel<kCtas>,
         {.grid = kCtas * rows,
          .block = kThreads,
          .shared = shared_bytes<kCtas>(v),
          .cluster = kCtas,
          .pdl = true},
         in, out);
}

}  // namespace dsv4::sample_kernel
