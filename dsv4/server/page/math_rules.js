// Rules for markdown-it that find formulas of LaTeX: $a$, $$a$$, \(a\) and \[a\]. They become <span class="math">, with
// "display" where the formula stands on lines of its own; math.js sets them.
//
// A dollar opens a formula when the next character is no space and the one before is no letter or digit; it closes one when
// the character before is no space and the next one is no digit; code does not stand inside. So "$5 and $10" stays text.

const PAIRS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];
const isDisplay = open => open === "$$" || open === "\\[";

// Where `close` stands in `text` at or after `from`, not after a backslash of its own; -1 where it does not.
function closing(text, close, from) {
  for (let at = text.indexOf(close, from); at >= 0; at = text.indexOf(close, at + 1)) {
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") ++slashes;
    if (slashes % 2 === 0) return at;
  }
  return -1;
}

function closingDollar(text, from) {
  const code = text.indexOf("`", from), end = code < 0 ? text.length : code;
  for (let at = closing(text, "$", from); at >= 0 && at < end; at = closing(text, "$", at + 1)) {
    if (!/\s/.test(text[at - 1]) && !/\d/.test(text[at + 1] ?? "")) return at;
  }
  return -1;
}

function inlineRule(state, silent) {
  const { src, pos } = state, pair = PAIRS.find(([open]) => src.startsWith(open, pos));
  if (!pair) return false;
  const [open, close] = pair, from = pos + open.length;
  if (open === "$" && (/\s/.test(src[from] ?? " ") || /[\p{L}\p{N}]/u.test(src[pos - 1] ?? ""))) return false;
  const end = open === "$" ? closingDollar(src, from) : closing(src, close, from);
  if (end < 0 || !src.slice(from, end).trim()) return false;
  if (!silent) Object.assign(state.push("math", "span", 0), { content: src.slice(from, end), info: isDisplay(open) ? "display" : "" });
  state.pos = end + close.length;
  return true;
}

// Lines from one that begins with $$ or \[ to one that ends with its partner.
function blockRule(state, first, end, silent) {
  const text = line => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const pair = PAIRS.find(([open]) => isDisplay(open) && text(first).startsWith(open));
  if (!pair || state.sCount[first] - state.blkIndent >= 4) return false;
  const [open, close] = pair, lines = [];
  for (let line = first; line < end; ++line) {
    if (line > first && text(line) && state.sCount[line] < state.blkIndent) return false;  // the list item or quote has ended
    const rest = line === first ? text(line).slice(open.length) : text(line), at = closing(rest, close, 0);
    lines.push(at < 0 ? rest : rest.slice(0, at));
    if (at < 0) continue;
    if (rest.slice(at + close.length).trim() || !lines.join("").trim()) return false;
    if (!silent) {
      const token = state.push("math_block", "p", 0);
      Object.assign(token, { block: true, content: lines.join("\n"), info: "display", map: [first, line + 1] });
      state.line = line + 1;
    }
    return true;
  }
  return false;
}

export function mathRules(md) {
  const html = token => `<span class="math ${token.info}">${md.utils.escapeHtml(token.content)}</span>`;
  md.inline.ruler.before("escape", "math", inlineRule);
  md.block.ruler.before("fence", "math_block", blockRule, { alt: ["paragraph", "reference", "blockquote", "list"] });
  md.renderer.rules.math = (tokens, index) => html(tokens[index]);
  md.renderer.rules.math_block = (tokens, index) => `<p>${html(tokens[index])}</p>\n`;
}
