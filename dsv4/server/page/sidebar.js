// The side panel: the list of conversations with its search, renaming and deleting, and export and import of all of them.

import { $, make, say } from "./dom.js";
import { holds, readConversation } from "./tree.js";

let renaming = null;  // the id of the conversation whose title is being edited

const titleOf = chat => chat.title || "Untitled";

function renameField(chat, actions) {
  const input = make("input", { value: chat.title, "aria-label": "New title" });
  const end = isKept => {
    if (renaming !== chat.id) return;  // the field loses the focus when it is removed
    renaming = null;
    actions.rename(chat, isKept && input.value.trim() ? input.value.trim() : chat.title);
  };
  input.onkeydown = event => {
    if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    end(event.key === "Enter");
    document.querySelector("#chats .current .open")?.focus();
  };
  input.onblur = () => end(true);
  return input;
}

function entry(chat, isCurrent, actions) {
  const item = make("li", { className: isCurrent ? "current" : "" });
  if (renaming === chat.id) {
    item.append(renameField(chat, actions));
    return item;
  }
  const open = make("button", { className: "open", textContent: titleOf(chat), title: titleOf(chat) });
  open.onclick = () => actions.open(chat);
  if (isCurrent) open.setAttribute("aria-current", "true");
  const rename = make("button", { textContent: "✎", title: "Rename", "aria-label": "Rename " + titleOf(chat) });
  rename.onclick = () => { renaming = chat.id; actions.redraw(); $("chats").querySelector("input").select(); };
  const remove = make("button", { textContent: "×", title: "Delete", "aria-label": "Delete " + titleOf(chat) });
  remove.onclick = () => { if (confirm(`Delete "${titleOf(chat)}"?`)) actions.remove(chat); };
  item.append(open, rename, remove);
  return item;
}

export function drawSidebar(chats, current, actions) {
  if (renaming !== null && $("chats").querySelector("input")) return;  // a title is being written
  const words = $("search").value.trim(), all = chats.filter(chat => chat.nodes.length);
  const found = all.filter(chat => !words || holds(chat, words));
  $("chats").replaceChildren(...found.map(chat => entry(chat, chat === current, actions)));
  $("found").textContent = words ? `${found.length} of ${all.length} conversations` : "";
}

export function closeSidebar() {
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", false);
}

function exportAll(chats) {
  const text = JSON.stringify(chats.filter(chat => chat.nodes.length), null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: "dsv4-chats.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

async function importFile(file, actions) {
  try {
    const value = JSON.parse(await file.text()), found = (Array.isArray(value) ? value : []).map(readConversation).filter(Boolean);
    if (!found.length) throw new Error("no conversations of this page");
    actions.add(found);
  } catch (error) { say("import: " + error.message, true); }
}

// `list()`: all conversations.
export function startSidebar(list, actions) {
  $("search").oninput = actions.redraw;
  $("search").onkeydown = event => { if (event.key === "Escape") { $("search").value = ""; actions.redraw(); } };
  $("menu").onclick = () => {
    const isOpen = $("side").classList.toggle("open");
    $("menu").setAttribute("aria-expanded", isOpen);
    if (isOpen) $("close").focus();
  };
  $("close").onclick = $("shade").onclick = () => { closeSidebar(); $("menu").focus(); };
  $("new").onclick = actions.begin;
  $("export").onclick = () => exportAll(list());
  $("import").onclick = () => $("file").click();
  $("file").onchange = async () => { await importFile($("file").files[0], actions); $("file").value = ""; };
  $("clear").onclick = () => { if (confirm("Delete all conversations of this browser?")) actions.removeAll(); };
}
