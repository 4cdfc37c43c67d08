#include "apps/line_editor.h"

#include <histedit.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

constexpr int kHistory = 1000;
// A terminal that knows them sends these around what is pasted.
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";
constexpr std::wstring_view kPasteEnd = L"\033[201~";

// A terminal without a type, or of the type without control sequences, would show them as text.
bool marks_pastes() {
  const std::string type = env("TERM");
  return !type.empty() && type != "dumb";
}

unsigned char insert_newline(EditLine* editor, int) {
  return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

// Terminals send a carriage return for each line end of what is pasted, which libedit turns into a
// newline, and the reverse.
unsigned char insert_paste(EditLine* editor, int) {
  std::wstring text;
  for (wchar_t c; !text.ends_with(kPasteEnd) && el_wgetc(editor, &c) == 1;)
    text += c == L'\r' ? L'\n' : c;
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

}  // namespace

struct LineEditor::Impl {
  Impl() {
    // Only the locale of characters is set: numbers keep their form.
    const char* locale = std::setlocale(LC_CTYPE, "");
    if (locale == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("dsv4", stdin, stdout, stderr);
    past = history_init();
    if (editor == nullptr || past == nullptr)
      fail(ErrorCode::kResource, "the terminal cannot be used for editing");
    HistEvent event;
    history(past, &event, H_SETSIZE, kHistory);
    history(past, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, past);
    el_set(editor, EL_ADDFN, "newline-in-text", "Begin a new line", &insert_newline);
    el_set(editor, EL_ADDFN, "paste", "Insert what is pasted", &insert_paste);
    // While it edits, libedit exchanges Enter and Ctrl-J: ^M is what Ctrl-J sends.
    el_set(editor, EL_BIND, "^M", "newline-in-text", nullptr);
    el_set(editor, EL_BIND, "\\e^J", "newline-in-text", nullptr);
    el_set(editor, EL_BIND, "\\e[200~", "paste", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }
  ~Impl() {
    if (past != nullptr) history_end(past);
    if (editor != nullptr) el_end(editor);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static char* prompt_of(EditLine* editor) {
    Impl* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  EditLine* editor = nullptr;
  History* past = nullptr;
  std::string prompt;
};

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {
}

LineEditor::~LineEditor() = default;

LineEditor::End LineEditor::read(const std::string& prompt, std::string& text) {
  impl_->prompt = prompt;
  const bool pastes = marks_pastes();
  if (pastes) std::fputs(kPasteOn, stdout);
  std::fflush(stdout);
  int count = 0;
  errno = 0;
  const char* line = el_gets(impl_->editor, &count);
  const bool interrupted = line == nullptr && errno == EINTR;
  if (pastes) std::fputs(kPasteOff, stdout);
  std::fflush(stdout);
  if (line == nullptr || count <= 0) {
    el_set(impl_->editor, EL_PREP_TERM, 0);
    return interrupted ? End::kInterrupt : End::kEndOfInput;
  }
  text.assign(line, static_cast<size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  HistEvent event;
  if (!text.empty()) history(impl_->past, &event, H_ENTER, text.c_str());
  return End::kText;
}

}  // namespace dsv4::apps
