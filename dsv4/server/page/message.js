// One message of the conversation as an element: thinking, text, files, calls of tools, and the buttons below.
//
// What the buttons do comes in as `actions`; `view` is { chat, running, isLast }. The elements of a text are kept with its
// node and updated in place while the answer grows.

import { copyText, make, smallButton } from "./dom.js";
import { showMarkdown } from "./markdown.js";
import { resultsAfter, versions } from "./tree.js";

const ENDINGS = { stopped: "stopped", length: "cut at the limit of tokens", interrupted: "interrupted", failed: "" };
const kept = new WeakMap();  // node: the element of its text, and the text that this shows

function textOf(node) {
  const one = kept.get(node) ?? { element: make("div", { className: "text" }), content: null };
  if (one.content !== node.content) {
    if (node.role === "assistant") showMarkdown(one.element, node.content); else one.element.textContent = node.content;
    one.content = node.content;
  }
  kept.set(node, one);
  return one.element;
}

function thinkingOf(node, index, isActive) {
  const tokens = node.think_tokens ? `, ${node.think_tokens} tokens` : "";
  const took = node.think_seconds === undefined ? "" : ` for ${node.think_seconds.toFixed(1)} s${tokens}`;
  const title = isActive && !node.content ? "Thinking" : "Thought" + took;
  const details = make("details", { className: "think", open: node.open ?? false }, make("summary", { textContent: title }),
    make("div", { textContent: node.reasoning_content }));
  details.firstElementChild.dataset.key = `think.${index}`;
  details.ontoggle = () => { node.open = details.open; };
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
    card.append(make("span", { className: "meta", textContent: "Result" }), make("pre", { className: "result" }, make("code", { textContent: result })));
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
  const node = view.chat.nodes[index], isActive = view.running && view.isLast, isUser = node.role === "user";
  const article = make("article", { className: node.role, "aria-label": isUser ? "You" : "Assistant" });
  article.classList.toggle("replaced", view.isReplaced);
  if (node.reasoning_content) article.append(thinkingOf(node, index, isActive));
  if (node.files?.length) article.append(filesOf(node));
  article.append(textOf(node));
  if (isActive && !node.content) article.append(make("span", { className: "meta waiting", textContent: node.reasoning_content ? "" : "reading" }));
  for (const call of node.tool_calls ?? []) article.append(callOf(call, index, view, actions));
  if (node.error) article.append(make("p", { className: "error", textContent: node.error }));
  article.append(buttonsOf(node, index, view, actions));
  return article;
}
