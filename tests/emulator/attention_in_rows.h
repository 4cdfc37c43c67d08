// What the kernels that append rows (attention_in/sm90_few/append.h) read and write, for tests.

#pragma once

#include <string>
#include <vector>

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/attention_in/attention_in_oracle.h"
#include "dsv4/ops/attention_in/random_case_test.h"
#include "dsv4/ops/attention_in/sm90_few/append.h"
#include "dsv4/ops/linear/linear_oracle.h"
#include "dsv4/ops/linear/projection_oracle.h"
#include "dsv4/ops/oracle.h"
#include "tests/emulator/launch.h"

namespace dsv4::test {

// Reads and writes every byte, as the kernels before and after do.
inline emulator::Kernel touching(std::vector<ConstTensorView> views) {
  return {{.block = 32, .pdl = true}, [=] {
            ptx::griddepcontrol_launch_dependents();
            ptx::griddepcontrol_wait();
            for (const ConstTensorView& view : views) {
              auto* bytes = reinterpret_cast<volatile uint8_t*>(const_cast<std::byte*>(view.data));
              for (int64_t i = threadIdx.x; i < view.bytes(); i += 32)
                bytes[i] = static_cast<uint8_t>(bytes[i]);
            }
          }};
}

// The oracle's products of x.
struct RowProducts {
  Buffer kv, entry_kv, entry_gate, key_kv, key_gate;

  explicit RowProducts(const AttentionInArgs& args) {
    const AttentionInWeights& w = args.weights;
    const auto product = [&](const WeightView& weight) {
      return oracle::stored(DType::kF32, {args.x.dim(0), weight.n},
                            linear_oracle({.x = args.x, .weight = weight}));
    };
    kv = oracle::stored(DType::kBF16, {args.x.dim(0), w.wkv.n},
                        projection_oracle(Context{}, args.x, w.wkv));
    if (args.state.layout.ratio > 0)
      entry_kv = product(w.compressor.wkv), entry_gate = product(w.compressor.wgate);
    if (args.index_state.layout.ratio == 0) return;
    key_kv = product(w.indexer.compressor.wkv), key_gate = product(w.indexer.compressor.wgate);
  }
  AppendInputs inputs() const { return {kv, entry_kv, entry_gate, key_kv, key_gate}; }
};

// Rows and states of a call, with what they should be.
struct Rows {
  std::vector<OpOutput> outputs;
  std::vector<ConstTensorView> touched;  // inputs and outputs

  Rows(const AttentionInArgs& args, const AttentionInWant& want, const RowProducts& products) {
    const Tolerances& tolerances = kOfficial;
    outputs = {pool_output("window", args.window, args.window_rows, want.window, tolerances.rows)};
    touched = {products.kv, args.positions, args.window_rows, args.window.pages};
    if (args.state.layout.ratio > 0) {
      outputs.push_back(
          pool_output("entries", args.entries, args.entry_rows, want.entries, tolerances.rows));
      outputs.push_back({"state", args.state.slots, want.state, tolerances.state});
      for (const ConstTensorView& view :
           {ConstTensorView(products.entry_kv), ConstTensorView(products.entry_gate),
            args.cu_tokens, args.start, args.state_slots, args.entry_rows, args.entry_positions,
            ConstTensorView(args.entries.pages), ConstTensorView(args.state.slots)})
        touched.push_back(view);
    }
    if (args.index_state.layout.ratio == 0) return;
    outputs.push_back(pool_output("keys", args.keys, args.entry_rows, want.keys, tolerances.keys));
    outputs.push_back({"index_state", args.index_state.slots, want.index_state, tolerances.state});
  }

  void expect_equal() const {
    for (const OpOutput& output : outputs) {
      const Buffer decoded = output.decoded ? output.decoded() : Buffer();
      EXPECT_EQ(
          compare(output.decoded ? decoded.view() : output.view, output.want, output.tolerance), "")
          << output.name;
    }
  }
};

}  // namespace dsv4::test
