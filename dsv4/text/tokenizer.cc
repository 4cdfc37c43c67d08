#include "dsv4/text/tokenizer.h"

#include <unordered_map>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/text/added_tokens.h"
#include "dsv4/text/bpe.h"
#include "dsv4/text/pre_tokenizer.h"
#include "dsv4/text/tokenizer_json.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

// Longer pieces rarely repeat, and hashing them would cost more than it saves.
constexpr size_t kMaxCachedPiece = 64;

AddedTokenFinder finder_of(const std::vector<AddedToken>& added, bool normalized) {
  std::vector<AddedToken> some;
  for (const AddedToken& token : added) {
    if (token.normalized == normalized) some.push_back(token);
  }
  return AddedTokenFinder(std::move(some));
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile file);

  std::vector<std::string> tokens;  // [id] bytes
  std::vector<bool> special;        // [id]
  std::array<int32_t, 256> byte_ids;
  AddedTokenFinder raw_added, normalized_added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  // Whole pieces that need no merges: bytes -> id. Empty unless the file sets ignore_merges.
  std::unordered_map<std::string_view, int32_t> whole_pieces;
};

Tokenizer::Impl::Impl(TokenizerFile file)
    : tokens(std::move(file.tokens)),
      special(tokens.size()),
      byte_ids(file.byte_ids),
      raw_added(finder_of(file.added, false)),
      normalized_added(finder_of(file.added, true)),
      pre_tokenizer(file.patterns),
      bpe(std::move(file.merges), file.byte_ids) {
  for (const AddedToken& token : file.added) special[token.id] = token.special;
  if (!file.ignore_merges) return;
  for (const int32_t id : file.vocab_ids) whole_pieces.emplace(tokens[id], id);
}

// State of one encode() call: the ids found so far and scratch memory.
class Tokenizer::Encoding {
 public:
  explicit Encoding(const Impl& impl) : impl_(impl) {}

  std::vector<int32_t> run(std::string_view text) {
    split_at_added(impl_.raw_added, text, [&](std::string_view part) {
      split_at_added(impl_.normalized_added, part,
                     [&](std::string_view rest) { plain_text(rest); });
    });
    return std::move(ids_);
  }

 private:
  template <class Visit>
  void split_at_added(const AddedTokenFinder& finder, std::string_view text, const Visit& visit) {
    size_t done = 0;
    while (const auto match = finder.find(text, done)) {
      visit(text.substr(done, match->begin - done));
      ids_.push_back(match->id);
      done = match->end;
    }
    visit(text.substr(done));
  }

  void plain_text(std::string_view text) {
    while (!text.empty()) {
      const size_t valid = valid_utf8_prefix(text);
      pieces_.clear();
      impl_.pre_tokenizer.split(text.substr(0, valid), regex_, pieces_);
      for (const std::string_view piece : pieces_) encode_piece(piece);
      text.remove_prefix(valid);
      if (text.empty()) break;
      ids_.push_back(impl_.byte_ids[static_cast<uint8_t>(text[0])]);
      text.remove_prefix(1);
    }
  }

  void encode_piece(std::string_view piece) {
    if (const auto whole = impl_.whole_pieces.find(piece); whole != impl_.whole_pieces.end()) {
      ids_.push_back(whole->second);
      return;
    }
    if (piece.size() > kMaxCachedPiece) return impl_.bpe.encode(piece, bpe_, ids_);
    const auto [seen, is_new] = seen_.try_emplace(piece, Range{ids_.size(), 0});
    Range& range = seen->second;
    if (is_new) {
      impl_.bpe.encode(piece, bpe_, ids_);
      range.size = ids_.size() - range.begin;
    } else {
      for (size_t i = 0; i < range.size; ++i) ids_.push_back(ids_[range.begin + i]);
    }
  }

  struct Range {
    size_t begin, size;
  };

  const Impl& impl_;
  std::vector<int32_t> ids_;
  std::vector<std::string_view> pieces_;
  std::unordered_map<std::string_view, Range> seen_;  // piece -> where its ids already are in ids_
  Regex::Scratch regex_;
  Bpe::Scratch bpe_;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {
}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  return parse(read_text_file(path), path);
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view what) {
  TokenizerFile file = parse_tokenizer_json(json, what);
  return Tokenizer(std::make_unique<const Impl>(std::move(file)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  DSV4_CHECK(text.size() < size_t{1} << 31, "{} bytes of text in one call", text.size());
  return Encoding(*impl_).run(text);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view token = token_bytes(id);
    if (!skip_special || !is_special(id)) bytes += token;
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  DSV4_CHECK(id >= 0 && id < vocab_size(), "id {} in a vocabulary of {}", id, vocab_size());
  return impl_->tokens[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::id(std::string_view content) const {
  const auto raw = impl_->raw_added.id(content);
  return raw ? raw : impl_->normalized_added.id(content);
}

bool Tokenizer::is_special(int32_t id) const {
  DSV4_CHECK(id >= 0 && id < vocab_size(), "id {} in a vocabulary of {}", id, vocab_size());
  return impl_->special[static_cast<size_t>(id)];
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

}  // namespace dsv4
