#include "dsv4/text/tokenizer.h"

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/text/added_tokens.h"
#include "dsv4/text/text_encoder.h"
#include "dsv4/text/tokenizer_json.h"

namespace dsv4 {
namespace {

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

  TextEncoder text;
  std::vector<std::string> tokens;  // [id] bytes
  std::vector<bool> special;        // [id]
  AddedTokenFinder raw_added, normalized_added;
};

// The encoder comes first: it takes the merges and leaves the tokens.
Tokenizer::Impl::Impl(TokenizerFile file)
    : text(file),
      tokens(std::move(file.tokens)),
      special(tokens.size()),
      raw_added(finder_of(file.added, false)),
      normalized_added(finder_of(file.added, true)) {
  for (const AddedToken& token : file.added) special[token.id] = token.special;
}

// State of one encode() call: the ids found so far and scratch memory.
class Tokenizer::Encoding {
 public:
  Encoding(const Impl& impl, size_t text_bytes) : impl_(impl), text_(impl.text, text_bytes) {}

  std::vector<int32_t> run(std::string_view text) {
    split_at_added(impl_.raw_added, text, [&](std::string_view part) {
      split_at_added(impl_.normalized_added, part,
                     [&](std::string_view rest) { text_.encode(rest, ids_); });
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

  const Impl& impl_;
  TextEncoder::Call text_;
  std::vector<int32_t> ids_;
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
  return Encoding(*impl_, text.size()).run(text);
}

const TextEncoder& Tokenizer::text_encoder() const {
  return impl_->text;
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
