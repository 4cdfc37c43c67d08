// One message of the conversation as an element: thinking, text, files, calls of tools, and the buttons below.
//
// What the buttons do comes in as `actions`; `view` is { chat, running, isLast, isReplaced }. A node keeps its element, and the
// text and the thinking inside stay where they are while the answer grows, so that a selection in them stays too.

import { copyText, make, setChildren, smallButton } from "./dom.js";
import { showMarkdown } from "./markdown.js";
import { resultsAfter, versions } from "./tree.js";

const ENDINGS = { stopped: "stopped", length: "cut at the limit of tokens", interrupted: "interrupted", failed: "" };
const kept = new WeakMap();  // node: { article, text, shown, thinking }

function keptOf(node) {
  if (!kept.has(node)) {
    const article = make("article", { className: node.role, "aria-label": node.role === "user" ? "You" : "Assistant" });
    const text = make("div", { className: "text" });
    article.append(text);
    kept.set(node, { article, text, shown: "", thinking: null });
  }
  return kept.get(node);
}

function showText(node, isActive) {
  const one = keptOf(node), wanted = `${isActive} ${node.content}`;
  if (one.shown === wanted) return;
  one.shown = wanted;
  if (node.role === "assistant") showMarkdown(one.text, node.content, isActive); else one.text.textContent = node.content;
}

// The folded thinking, to which only the new part is added.
function thinkingOf(node, isActive) {
  const one = keptOf(node);
  if (!one.thinking) {
    const text = document.createTextNode(""), summary = make("summary");
    const details = make("details", { className: "think", open: node.open ?? false }, summary, make("div", {}, text));
    details.ontoggle = () => { node.open = details.open; };
    one.thinking = { details, summary, text };
  }
  const { details, summary, text } = one.thinking, tokens = node.think_tokens ? `, ${node.think_tokens} tokens` : "";
  const took = node.think_seconds === undefined ? "" : ` for ${node.think_seconds.toFixed(1)} s${tokens}`;
  const title = isActive && !node.content ? "Thinking" : "Thought" + took;
  if (summary.textContent !== title) summary.textContent = title;
  text.appendData(node.reasoning_content.slice(text.length));
  return details;
}

function filesOf(node) {
  return make("ul", { className: "files", "aria-label": "Attached files" }, ...node.files.map(file =>
    make("li", {}, make("details", {}, make("summary", { textContent: `${file.name}, ${file.text.length} characters` }),
      make("pre", { textContent: file.text, tabIndex: 0 })))));
}

function callOf(call, index, { chat, running }, actions) {
  const { name } = call.function, result = resultsAfter(chat, index).get(call.id);
  const card = make("section", { className: "card", "aria-label": "Call of " + name }, make("strong", { textContent: name }),
    make("pre", {}, make("code", { textContent: call.function.arguments })));
  if (result !== undefined) {
    card.append(make("span", { className: "meta", textContent: "Result" }),
      make("pre", { className: "result" }, make("code", { textContent: result })));
  } else if (!running && call.cut) {
    card.append(make("span", { className: "error", textContent: "This call is incomplete." }));
  } else if (!running) {
    const input = make("textarea", { rows: 2, placeholder: "Paste the result of this call", "aria-label": "Result of " + name });
    const give = make("button", { type: "button", textContent: "Continue with this result" });
    give.onclick = () => actions.giveResult(call, input.value);
    card.append(input, give);
  }
  return card;
}

// "‹ 2/3 ›" where a message has several versions.
function versionsOf(index, { chat }, actions) {
  const all = versions(chat, index), at = all.indexOf(index);
  if (all.length < 2) return [];
  const step = (sign, by, label, isEnd) => {
    const button = smallButton(sign, `version${by}.${chat.nodes[index].parent}`, () => actions.switchVersion(index, by), label);
    button.setAttribute("aria-disabled", isEnd);
    return button;
  };
  return [make("span", { className: "versions", role: "group", "aria-label": `Version ${at + 1} of ${all.length}` },
    step("‹", -1, "Previous version", at === 0), make("span", { className: "meta", textContent: `${at + 1}/${all.length}` }),
    step("›", 1, "Next version", at === all.length - 1))];
}

const goesOn = node => node.ending && !node.tool_calls && (node.content || node.reasoning_content);

function buttonsOf(node, index, view, actions) {
  const row = make("div", { className: "row" });
  if (!view.running) {
    row.append(...versionsOf(index, view, actions));
    if (node.role === "user") row.append(smallButton("edit", `edit.${index}`, () => actions.edit(index)));
    if (node.role === "assistant" && view.isLast) {
      row.append(smallButton("regenerate", "regenerate", () => actions.regenerate(index)));
      if (goesOn(node)) row.append(smallButton("continue", "continue", () => actions.goOn(index)));
    }
    if (node.content) row.append(smallButton("copy", `copy.${index}`, button => copyText(node.content, button)));
  }
  const isActive = view.running && view.isLast, notes = [isActive ? "" : ENDINGS[node.ending], node.stats].filter(Boolean);
  if (notes.length) row.append(make("span", { className: "meta", textContent: notes.join(", ") }));
  return row;
}

export function messageElement(index, view, actions) {
  const node = view.chat.nodes[index], isActive = view.running && view.isLast, { article, text } = keptOf(node);
  showText(node, isActive);
  article.classList.toggle("replaced", view.isReplaced);
  const before = [], after = [];
  if (node.reasoning_content) before.push(thinkingOf(node, isActive));
  if (node.files?.length) before.push(filesOf(node));
  if (isActive && !node.content) {
    after.push(make("span", { className: "meta waiting", textContent: node.reasoning_content ? "" : "reading" }));
  }
  for (const call of node.tool_calls ?? []) after.push(callOf(call, index, view, actions));
  if (node.error) after.push(make("p", { className: "error", textContent: node.error }));
  after.push(buttonsOf(node, index, view, actions));
  setChildren(article, [...before, text, ...after]);
  return article;
}
