// Which way to feed x' (feed.cuh) keeps up with the products, with a live ring of codes?
//
//   feed_f16       A. K3 in f16. Expected: tiles reach the loop's bound (kNone), and a cluster
//                  halves what comes out of L2. The sorting copy of tiles is timed too
//   feed_token     A. MXFP4 in e4m3 with one factor a token: an upper bound of e4m3, not the
//                  official rounding (Humming: 860 TFLOP/s with its epilogue)
//   feed_promoted  B. MXFP4 in e4m3 with a factor of each token and 128 columns, the official
//                  rounding (Humming: 599). At N = 96 also with two sets of partial sums, which
//                  keep products in flight while sums are added
//
// Not measured: epilogue, factors that come with x', the sorting copy beside the products.

#include "bench/micro/feed_data.cuh"

namespace dsv4::micro {

void feed_f16(bool clusters) {
  {
    FeedCases<Fed<KbitF16<3>, 96>> cases("A", "k3_f16_n96");
    if (!clusters) cases.time_sort();
    cases.all(clusters);
  }
  FeedCases<Fed<KbitF16<3>, 128>>("A", "k3_f16_n128").all(clusters);
}

void feed_token(bool clusters) {
  {
    FeedCases<Fed<Mxfp4E4m3, 96>> cases("A", "mxfp4_e4m3_token_n96");
    if (!clusters) cases.time_sort();
    cases.all(clusters);
  }
  FeedCases<Fed<Mxfp4E4m3, 128>>("A", "mxfp4_e4m3_token_n128").all(clusters);
}

void feed_promoted(bool clusters) {
  FeedCases<Fed<Mxfp4E4m3, 96, 1>>("B", "mxfp4_e4m3_every_128_n96").all(clusters);
  FeedCases<Fed<Mxfp4E4m3, 96, 2>>("B", "mxfp4_e4m3_every_128_n96_two_parts").all(clusters);
  FeedCases<Fed<Mxfp4E4m3, 128, 1>>("B", "mxfp4_e4m3_every_128_n128").all(clusters);
}

}  // namespace dsv4::micro
