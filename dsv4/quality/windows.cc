#include "dsv4/quality/windows.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void split_document(std::span<const int32_t> text, int64_t room, int64_t stride, int64_t first,
                    std::vector<Window>& windows) {
  const auto total = static_cast<int64_t>(text.size());
  int64_t counted = first;  // tokens before this one are already counted
  for (int64_t begin = 0; counted < total; begin += stride) {
    const int64_t end = std::min(begin + room, total);
    windows.push_back({text.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                       counted - begin});
    counted = end;
  }
}

}  // namespace

int64_t stride_of(const WindowOptions& options) {
  if (options.context < 2)
    fail(ErrorCode::kBadInput, "a context of {} tokens predicts nothing", options.context);
  // One position is taken either by BOS or by one token of overlap.
  const int64_t largest = options.context - 1;
  const int64_t stride = options.stride == 0 ? largest : options.stride;
  if (stride < 1 || stride > largest) {
    fail(ErrorCode::kBadInput, "a stride of {} does not fit a context of {}: want 1 to {}", stride,
         options.context, largest);
  }
  return stride;
}

std::vector<Window> split_windows(std::span<const int32_t> ids, const WindowOptions& options) {
  const int64_t stride = stride_of(options);
  const bool has_bos = options.bos >= 0;
  const int64_t room = has_bos ? options.context - 1 : options.context;
  std::vector<Window> windows;
  while (!ids.empty()) {
    const auto next = has_bos ? std::find(ids.begin(), ids.end(), options.bos) : ids.end();
    const auto size = static_cast<size_t>(next - ids.begin());
    split_document(ids.first(size), room, stride, has_bos ? 0 : 1, windows);
    ids = ids.subspan(std::min(size + 1, ids.size()));
  }
  return windows;
}

int64_t num_counted(std::span<const Window> windows) {
  int64_t count = 0;
  for (const Window& window : windows) count += window.counted();
  return count;
}

void for_each_piece(std::span<const Window> windows, int32_t bos, int64_t chunk,
                    const std::function<void(const Piece&)>& on_piece) {
  DSV4_CHECK(chunk >= 1, "chunk of {} tokens", chunk);
  std::vector<int32_t> ids;
  for (size_t w = 0; w < windows.size(); ++w) {
    const Window& window = windows[w];
    ids.clear();
    if (bos >= 0) ids.push_back(bos);
    ids.insert(ids.end(), window.text.begin(), window.text.end());
    const auto total = static_cast<int64_t>(ids.size());
    const int64_t first_row = total - window.counted() - 1;  // predicts the first counted token
    const std::span<const int32_t> all(ids);
    for (int64_t begin = 0, end = 0; begin < total - 1; begin = end) {
      const bool wanted = begin >= first_row;
      end = std::min(begin + chunk, wanted ? total - 1 : first_row);
      const auto at = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      on_piece({.fresh = begin == 0,
                .ids = all.subspan(at, count),
                .targets = wanted ? all.subspan(at + 1, count) : std::span<const int32_t>(),
                .window = static_cast<int64_t>(w),
                .position = begin});
    }
  }
}

}  // namespace dsv4
