// What the kernels that append rows (attention_in/sm90_few/append.h) read and write, for tests.

#pragma once

#include <string>
#include <vector>

#include "dsv4/ops/model/attention_in/attention_in_check_test.h"
#include "dsv4/ops/model/attention_in/sm90_few/append.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/touching.h"

namespace dsv4::test {

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
