// What the model writes, as elements: markdown-it makes HTML of it, DOMPurify sanitizes that, and only then is it part of the
// page. Three gates keep hostile text inert: markdown-it escapes every tag but a few without attributes, the sanitizer knows
// a short list of tags, attributes and protocols, and the page's policy runs no script but its own.
//
// An answer that grows is parsed whole at every frame, but only blocks (paragraphs, lists, code) whose source has changed
// are made anew; the others keep their elements, so that a selection stays. Formulas and code colors load on first use.

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { copyText, make, smallButton } from "./dom.js";
import { mathRules } from "./math_rules.js";

const PURE = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "em", "h2", "h3", "h4", "h5", "h6", "hr", "input", "kbd", "li", "ol", "p", "pre", "s",
    "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["aria-label", "checked", "class", "disabled", "href", "start", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const LONGEST_COLORED = 50000, LONGEST_GROWING = 3000;  // characters of code; coloring more in a frame would delay the next

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true });
for (const rules of [mathRules, plainTags, taskLists, plainAttributes]) markdown.use(rules);
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = url => /^(?:https?|mailto):/i.test(url.trim());

// A picture would be loaded from elsewhere: it becomes a link.
markdown.renderer.rules.image = (tokens, index) => {
  const { escapeHtml } = markdown.utils, picture = tokens[index];
  return `<a href="${escapeHtml(picture.attrGet("src"))}">${escapeHtml(picture.content || "picture")}</a>`;
};
// The language of a code block, without what else its line says.
markdown.renderer.rules.fence = (tokens, index) => {
  const { escapeHtml } = markdown.utils, language = tokens[index].info.trim().split(/[\s{:,]/)[0];
  return `<pre><code class="language-${escapeHtml(language)}">${escapeHtml(tokens[index].content)}</code></pre>\n`;
};

// <br>, <sub>, <sup> and <kbd> without attributes, which models write in tables and formulas of chemistry.
function plainTags(md) {
  md.inline.ruler.before("html_inline", "plain_tags", (state, silent) => {
    const tag = /^<(?:br ?\/?|\/?(?:sub|sup|kbd))>/i.exec(state.src.slice(state.pos, state.pos + 8))?.[0];
    if (!tag) return false;
    if (!silent) state.push("html_inline", "", 0).content = tag.toLowerCase();
    state.pos += tag.length;
    return true;
  });
}

// "- [x] text" as a box that is checked.
function taskLists(md) {
  md.core.ruler.after("inline", "task_lists", state => {
    state.tokens.forEach((token, at) => {
      const isFirst = [token, state.tokens[at - 1], state.tokens[at - 2]].map(one => one?.type).join() === "inline,paragraph_open,list_item_open";
      const mark = isFirst && /^\[([ xX])\]\s/.exec(token.content), text = token.children?.[0];
      if (!mark || text?.type !== "text") return;
      const box = new state.Token("html_inline", "", 0), isDone = mark[1] !== " ";
      box.content = `<input type="checkbox" disabled aria-label="${isDone ? "done" : "not done"}"${isDone ? " checked" : ""}> `;
      text.content = text.content.slice(mark[0].length);
      token.children.unshift(box);
      state.tokens[at - 2].attrJoin("class", "task");
    });
  });
}

// The page's own headings stand above those of an answer; columns are aligned by classes, since the policy forbids style attributes.
function plainAttributes(md) {
  md.core.ruler.push("plain_attributes", state => {
    for (const token of state.tokens) {
      if (token.type.startsWith("heading_")) token.tag = "h" + Math.min(Number(token.tag[1]) + 1, 6);
      const style = token.attrGet("style");
      if (style !== null) token.attrs = [["class", style.replace("text-align:", "")]];
    }
  });
}

// Code that loads when the first formula or the first code block appears.
function lazily(load) {
  let module = null, loading = null;
  return action => {
    if (module) return action(module);
    loading ??= load();
    loading.then(loaded => { module = loaded; action(loaded); }, () => {});  // without it the source stays readable
  };
}
const withMath = lazily(() => {
  document.head.append(make("link", { rel: "stylesheet", href: "/page/katex.css" }));
  return import("./math.js");
});
const withColors = lazily(() => import("./code.js"));

function finishCode(pre, longest) {
  const code = pre.firstElementChild, source = code.textContent, language = code.className.replace("language-", "");
  const copy = smallButton("copy", "", button => copyText(source, button), "Copy this code");
  const head = make("div", { className: "head" }, make("span", { textContent: language }), copy);
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  pre.setAttribute("role", "region");
  const frame = make("div", { className: "code" });
  pre.replaceWith(frame);
  frame.append(head, pre);
  if (language && source.length <= longest) {
    withColors(colors => {
      const html = colors.colored(source, language);
      if (html !== null) code.replaceChildren(DOMPurify.sanitize(html, { ...PURE, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] }));
    });
  }
}

function elementsOf(html, isGrowing) {
  const part = DOMPurify.sanitize(html, PURE);
  for (const link of part.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noreferrer noopener" });
  for (const box of part.querySelectorAll("input")) box.type = "checkbox";
  for (const table of part.querySelectorAll("table")) {
    const frame = make("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of part.querySelectorAll("pre")) finishCode(pre, isGrowing ? LONGEST_GROWING : LONGEST_COLORED);
  for (const formula of part.querySelectorAll(".math")) {
    const source = formula.textContent;
    withMath(math => math.show(formula, source, formula.classList.contains("display")));
  }
  return [...part.childNodes].filter(node => node.nodeType === Node.ELEMENT_NODE || node.textContent.trim());
}

// The top-level blocks of a text: { source, html() }.
function blocksOf(text) {
  const environment = {}, tokens = markdown.parse(text, environment), lines = text.split(/\r\n?|\n/), blocks = [];
  const links = Object.keys(environment.references ?? {}).length;  // a definition changes blocks before it
  for (let at = 0; at < tokens.length;) {
    let end = at + 1;
    for (let depth = tokens[at].nesting; depth > 0; ++end) depth += tokens[end].nesting;
    const group = tokens.slice(at, end), [first, last] = group[0].map;
    blocks.push({
      source: `${links}:${group[0].type}:${lines.slice(first, last).join("\n")}`,
      html: () => markdown.renderer.render(group, markdown.options, environment),
    });
    at = end;
  }
  return blocks;
}

const shown = new WeakMap();  // element: the blocks it shows, as [{ source, elements }]

// Makes `element` show the text; what it showed before stays where the source has not changed. With `isGrowing` the last block
// is not complete yet.
export function showMarkdown(element, text, isGrowing) {
  const blocks = blocksOf(text), old = shown.get(element) ?? [];
  if (isGrowing && blocks.length && blocks.at(-1).source.length > LONGEST_GROWING) blocks.at(-1).source += "\0";  // once more at the end
  let same = 0;
  while (same < old.length && same < blocks.length && old[same].source === blocks[same].source) ++same;
  for (const { elements } of old.slice(same)) elements.forEach(one => one.remove());
  const fresh = blocks.slice(same).map(({ source, html }, place, all) =>
    ({ source, elements: elementsOf(html(), isGrowing && place === all.length - 1) }));
  element.append(...fresh.flatMap(({ elements }) => elements));
  shown.set(element, [...old.slice(0, same), ...fresh]);
}
