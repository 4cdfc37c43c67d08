// Experts in turns (ops/parts/experts/expert_turns.h) for emulated kernels: those of a turn share
// their places with those of the others, and a kernel brings them when their turn begins.

#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "dsv4/ops/parts/experts/images_case_test.h"
#include "tests/emulator/launch.h"

namespace dsv4::emulator {

class ExpertsInTurns final : public ExpertTurns {
 public:
  // The turns are random, and some may have no expert.
  ExpertsInTurns(test::Arena& arena, const ExpertImages& images, int turns, uint64_t seed)
      : images_(images),
        count_(turns),
        turn_of_(arena.input(DType::kI32, {images.gate_up_bytes.dim(0)})),
        places_(arena.input(DType::kI64, {images.gate_up_bytes.dim(0)})) {
    Rng rng(seed);
    const int64_t e = turn_of_.dim(0);
    std::vector<int64_t> taken(static_cast<size_t>(turns));
    for (int64_t i = 0; i < e; ++i) {
      const auto turn = static_cast<int32_t>(rng.below(turns));
      turn_of_.as<int32_t>()[i] = turn;
      places_.as<int64_t>()[i] = taken[static_cast<size_t>(turn)]++;
    }
    memory_ = arena.inout(DType::kU8, {*std::max_element(taken.begin(), taken.end()), bytes()});
    for (int64_t i = 0; i < e; ++i)
      places_.as<int64_t>()[i] =
          reinterpret_cast<int64_t>(memory_.row<uint8_t>(places_.as<int64_t>()[i]));
  }

  ExpertImages images() {
    ExpertImages in_turns = images_;
    in_turns.gate_up_bytes.data = nullptr, in_turns.down_bytes.data = nullptr;
    in_turns.places = places_, in_turns.turns = this;
    return in_turns;
  }

  int count() const override { return count_; }
  ConstTensorView turn_of() const override { return turn_of_; }
  bool begin(int) override { return true; }
  void end(int) override {}

  // Every place that has no expert of the turn holds nothing after it. An ordinary launch, as what
  // waits for another stream is one.
  Kernel bring(int turn) const {
    return {{.block = 1}, [this, turn] {
              volatile uint8_t* const to = memory_.as<uint8_t>();
              for (int64_t i = 0; i < memory_.numel(); ++i) to[i] = 0xff;
              for (int64_t e = 0; e < turn_of_.dim(0); ++e)
                if (turn_of_.as<int32_t>()[e] == turn) copy(e);
            }};
  }

 private:
  int64_t bytes() const { return images_.gate_up.bytes() + images_.down.bytes(); }
  void copy(int64_t e) const {
    auto* to = reinterpret_cast<volatile uint8_t*>(places_.as<int64_t>()[e]);
    for (const ConstTensorView& from : {images_.gate_up_bytes, images_.down_bytes})
      for (int64_t i = 0; i < from.dim(1); ++i) *to++ = from.row<uint8_t>(e)[i];
  }

  const ExpertImages images_;
  const int count_;
  const TensorView turn_of_, places_;
  TensorView memory_;
};

}  // namespace dsv4::emulator
