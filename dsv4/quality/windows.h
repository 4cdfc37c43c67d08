// How a long text is split for measuring: windows of at most N tokens, each a separate sequence.
//
//   N = 8 with BOS, stride 4            without BOS, stride N - 1
//   B 0 1 2 3 4 5 6                     0 1 2 3 4 5 6 7
//           B 4 5 6 7 8 9 10                          7 8 9 10 11 12 13 14
//                   ^ counted from here: 7            ^ context only
//
// With a BOS token, every window begins with it (as in `dsv4 run`), so every token of the text is
// predicted exactly once. Without one, the first token of a text has no predecessor and is not
// counted; later windows begin with at least one token of overlap.
//
// A BOS token inside the ids begins a new document: no window crosses it, and it is not counted.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace dsv4 {

struct WindowOptions {
  int64_t context = 0;  // N, tokens of a window, including BOS
  int64_t stride = 0;   // from window to window; 0: the largest possible
  int32_t bos = -1;     // -1: none
};

struct Window {
  std::span<const int32_t> text;  // without BOS
  int64_t skip = 0;               // leading tokens of `text` that are context only
  int64_t counted() const { return static_cast<int64_t>(text.size()) - skip; }
};

// The stride in use: 0 resolved. Throws kBadInput when context or stride leave nothing to count.
int64_t stride_of(const WindowOptions& options);

// Views into `ids`. Documents without a countable token give no window.
std::vector<Window> split_windows(std::span<const int32_t> ids, const WindowOptions& options);

int64_t num_counted(std::span<const Window> windows);

// The input of one step of a model. `targets` are the successors of each of `ids` where they are
// counted, and empty where the step is context only.
struct Piece {
  bool fresh = false;  // begins a new sequence
  std::span<const int32_t> ids, targets;
  int64_t window = 0, position = 0;  // of ids[0], for error messages
};

// Calls on_piece for every window in pieces of at most `chunk` tokens. The last token of a window
// predicts nothing and is not passed to the model.
void for_each_piece(std::span<const Window> windows, int32_t bos, int64_t chunk,
                    const std::function<void(const Piece&)>& on_piece);

}  // namespace dsv4
