// What a client writes never becomes a marker, wherever it is written.

#pragma once

#include <gtest/gtest.h>

#include "tests/chat/chat_data.h"
#include "tests/chat/random_request.h"

namespace dsv4::test {

// The ids of markers in random prompts are those of the markers of the prompt, and nothing else.
inline void check_client_text(uint64_t seed, int requests) {
  Rng rng(seed);
  int spelled = 0;
  for (int i = 0; i < requests; ++i) {
    const Prompt prompt = render(read_chat_request(random_request(rng), {}));
    const std::vector<int32_t> ids = encode(prompt, marker_ids(), marker_text_encoder());
    std::vector<int32_t> want, got;
    bool tempted = false;
    for (const PromptPiece& piece : prompt.pieces()) {
      if (piece.marker) want.push_back(*marker_ids().id(*piece.marker));
      tempted = tempted || piece.text.find("<think>") != piece.text.npos;
    }
    for (const int32_t id : ids) {
      if (id >= 256) got.push_back(id);
    }
    ASSERT_EQ(got, want);
    ASSERT_EQ(marker_tokenizer().decode(ids), prompt.text());
    ASSERT_EQ(prompt.marker_spans().size(), want.size());
    spelled += tempted;
  }
  EXPECT_GT(spelled, requests / 10) << "the requests must tempt";
}

}  // namespace dsv4::test
