// 1. How many weights a clock and SM do two consumer warpgroups of two m64 decode and multiply (RS
//    f16 wgmma) when codes and x' lie in shared memory? Floor 2,048 / N. Prediction (design 5.1):
//    50 / 50 / 30 / 20.3 / 18.9 / 15.3 at N = 16 / 32 / 64 / 96 / 104 / 128. Ablations: constant A
//    (products), no products (decode). Fallback: one m64 a warpgroup, 3 or 4 of them.
// 2. The same with a live ring: codes by bulk copies of one or two lanes out of 0.9 GB, x' by
//    cp.async from random rows of 33 MB. Prediction: 90 % of 1. Ablations: only codes, only x'.
//
// 3. What does a second of it reach at 700 W: 660 - 700 TFLOP/s at 1.45 - 1.6 GHz?
//
// Not measured: epilogue, tickets, items of unequal N, down's K = 2,048. The clock of these short
// runs is higher than a long one's (part 3): read weights a clock.

#include "bench/micro/stream_data.cuh"
#include "bench/micro/sustained.h"

namespace dsv4::micro {
namespace {

constexpr int kUnits = 512;

template <class D, int kN, int kGroups = 2, int kBlocks = 2>
void fixed(double expected) {
  using C = Stream<D, kN, kGroups, kBlocks>;
  Data<C> data(multiprocessors(), multiprocessors());
  {
    Line line("1", D::kName);
    time_stream<C, false, kAll>(data, data.params(kUnits), line);
    line.expected(expected).check(check_stream<C, false>(data, data.params(6), 6),
                                  error_limit<D>());
  }
  if (kN == 96 && kGroups == 2) {
    Line line("1", std::string(D::kName) + "_no_products");
    time_stream<C, false, kDecode>(data, data.params(kUnits), line);
  }
  if (std::is_same_v<D, KbitF16<3>>) {
    Line line("1", "products_only");
    time_stream<C, false, kProducts>(data, data.params(kUnits), line);
    line.number("floor", 2048.0 / kN);
  }
}

template <class D, int kN>
void ring(double expected) {
  using C = Stream<D, kN>;
  constexpr int kItems = 132 * kItemsPerExpert;
  Data<C> data(multiprocessors(), kItems);
  const double error = check_stream<C, true>(data, data.params(20), 20);
  struct Case {
    const char* name;
    int lanes;
    bool codes, x;
  };
  const Case cases[] = {{"1_lane", 1, true, true},
                        {"2_lanes", 2, true, true},
                        {"codes_only", 1, true, false},
                        {"x_only", 1, false, true},
                        {"barriers_only", 1, false, false}};
  for (const Case& c : cases) {
    Line line("2", std::string(D::kName) + "_ring_" + c.name);
    StreamParams p = data.params(kUnits);
    p.lanes = c.lanes, p.copy_codes = c.codes, p.copy_x = c.x;
    const Timing t = measure([&] { start_stream<C, true, kAll>(p, data.ctas); }, &data.spans);
    report<C>(line, t, kUnits, data.ctas);
    const double each = double{kUnits} * data.ctas / t.us * 1e-6;  // units: TB/s of a byte
    line.number("codes_tb_s", c.codes ? each * C::kStrips * C::kUnitBytes : 0);
    line.number("x_tb_s", c.x ? each * C::kN * 512 : 0);
    line.expected(c.codes && c.x ? expected : 0).check(error, error_limit<D>());
  }
}

template <class C, bool kRing, int kWork>
void sustain_stream(const std::string& name) {
  Data<C> data(multiprocessors(), kRing ? 132 * kItemsPerExpert : multiprocessors());
  const StreamParams p = data.params(2048);
  sustain(
      name, [&] { start_stream<C, kRing, kWork>(p, data.ctas); },
      2.0 * C::kRows * 256 * C::kN * p.units * data.ctas, data.spans);
}

}  // namespace

void sustained() {
  sustain_stream<Stream<KbitF16<3>, 96>, false, kAll>("k3_f16_n96");
  sustain_stream<Stream<KbitF16<3>, 96>, true, kAll>("k3_f16_n96_ring");
  sustain_stream<Stream<KbitF16<3>, 96>, false, kProducts>("f16_n96_products_only");
  sustain_stream<Stream<KbitF16<3>, 128>, false, kAll>("k3_f16_n128");
  sustain_stream<Stream<KbitF16<3>, 128>, true, kAll>("k3_f16_n128_ring");
  sustained_e4m3();
}

void rs_f16() {
  fixed<KbitF16<3>, 96>(20.3);
  fixed<KbitF16<3>, 16>(50);
  fixed<KbitF16<3>, 32>(50);
  fixed<KbitF16<3>, 64>(30);
  fixed<KbitF16<3>, 104>(18.9);
  fixed<KbitF16<3>, 128>(15.3);
  fixed<KbitF16<4>, 16>(50);
  fixed<KbitF16<4>, 32>(50);
  fixed<KbitF16<4>, 64>(30);
  fixed<KbitF16<4>, 96>(20.3);
  fixed<KbitF16<4>, 104>(18.9);
  fixed<KbitF16<4>, 128>(15.3);
  fixed<KbitF16<3>, 96, 3, 1>(0);
  fixed<KbitF16<3>, 96, 4, 1>(0);
  ring<KbitF16<3>, 96>(18.3);
  ring<KbitF16<3>, 16>(42);
  ring<KbitF16<3>, 32>(42);
  ring<KbitF16<3>, 64>(27);
  ring<KbitF16<3>, 128>(13.8);
  ring<KbitF16<4>, 96>(18.3);
}

}  // namespace dsv4::micro
