// The chat page: its state, what its buttons do, and how the screen is drawn from the state. See tree.js for conversations,
// answer.js for requests, message.js and sidebar.js for elements.

import { receiveAnswer, requestBody } from "./answer.js";
import { connect, server } from "./api.js";
import { hasAttachments, startAttachments, takeAttachments } from "./attachments.js";
import { $, make, say, setChildren } from "./dom.js";
import { messageElement } from "./message.js";
import { startSettings } from "./settings.js";
import { closeSidebar, drawSidebar, startSidebar } from "./sidebar.js";
import { forget, forgetAll, keep, keepAtOnce, openHistory } from "./storage.js";
import { append, awaitsResult, newConversation, path, switchVersion, takeBack } from "./tree.js";

let current = newConversation(), chats = [current];
let running = null;  // AbortController of the answer that comes
let editing = null;  // index of the message that is being edited
let keepsHistory = true;

const atEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;
const toEnd = () => { $("log").scrollTop = $("log").scrollHeight; };
function growInput() { $("input").style.height = "auto"; $("input").style.height = $("input").scrollHeight + 2 + "px"; }

function welcome() {
  const history = keepsHistory ? "The history is kept in this browser." : "This browser keeps no history.";
  return make("div", { className: "empty" }, make("h2", { textContent: server.model || "dsv4" }),
    make("p", { className: "hint", textContent: `What you write goes to ${location.host} and nowhere else. ${history}` }));
}

function messages() {
  const indices = path(current), from = editing === null ? Infinity : indices.indexOf(editing);
  return indices.flatMap((index, place) => current.nodes[index].role === "tool" ? [] : [messageElement(index,
    { chat: current, running: !!running, isLast: place === indices.length - 1, isReplaced: place >= from }, messageActions)]);
}

function draw() {
  const follow = atEnd(), key = document.activeElement?.dataset.key;
  setChildren($("log"), current.nodes.length ? messages() : [welcome()]);
  $("log").setAttribute("aria-busy", !!running);
  if (key) $("log").querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  if (follow) toEnd();
  $("title").textContent = current.title || "New conversation";
  drawSidebar(chats, current, sidebarActions);
  $("send").hidden = !!running;
  $("stop").hidden = !running;
  $("editing").hidden = editing === null;
  $("gauge").value = server.context ? current.used / server.context : 0;
  $("gauge").title = `${current.used} of ${server.context} tokens of context`;
  growInput();
}

// Draws the last message alone, while its answer comes.
function drawLast() {
  const indices = path(current), follow = atEnd(), key = document.activeElement?.dataset.key;
  const last = messageElement(indices.at(-1), { chat: current, running: true, isLast: true, isReplaced: false }, messageActions);
  if (key) last.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  if (follow) toEnd();
}

function open(chat) {
  if (running) return;
  current = chat ?? chats.find(one => !one.nodes.length) ?? newConversation();
  if (!chats.includes(current)) chats.unshift(current);
  cancelEdit();
  closeSidebar();
  rememberOpen();
  draw();
  toEnd();
}

// The conversation that a reload of this tab opens again.
function rememberOpen() { sessionStorage.setItem("dsv4.open", current.id); }

function begin() { open(); $("input").focus(); }

// Requests an answer to what is on the screen, as a new node, or goes on with the last one.
async function answer({ continues = false, otherwise = current.leaf } = {}) {
  const chat = current;
  let body;
  try { body = requestBody(chat, path(chat), continues ? chat.nodes[chat.leaf] : null); } catch (error) {
    chat.leaf = otherwise;
    say("tools: " + error.message, true);
    return draw();
  }
  if (!continues) append(chat, chat.leaf, { role: "assistant", content: "" });
  const node = chat.nodes[chat.leaf];
  if (server.model) say(server.model);  // what was wrong before is over
  running = new AbortController();
  draw();
  toEnd();
  let frame = 0;
  const onPart = () => { frame ||= requestAnimationFrame(() => { frame = 0; if (running) drawLast(); }); };
  const came = await receiveAnswer(chat, body, running.signal, onPart);
  running = null;
  if (!came && !continues && otherwise !== node.parent) {  // the version before it stays
    takeBack(chat, otherwise);
    keep(chat);
    if (node.error) say(node.error, true);
  } else if (node.error) {
    connect(draw);
  }
  const isFree = [document.body, $("stop")].includes(document.activeElement);
  draw();
  if (isFree) $("input").focus();
}

const messageActions = {
  edit(index) {
    editing = index;
    $("input").value = current.nodes[index].content;
    takeAttachments(current.nodes[index].files);
    draw();
    $("input").focus();
  },
  regenerate(index) {
    const otherwise = current.leaf;
    current.leaf = current.nodes[index].parent;
    answer({ otherwise });
  },
  goOn() { answer({ continues: true }); },
  switchVersion(index, step) { switchVersion(current, index, step); keep(current); draw(); },
  giveResult(call, content) {
    const asked = path(current).findLast(index => current.nodes[index].role === "assistant");
    append(current, current.leaf, { role: "tool", content, tool_call_id: call.id });
    if (awaitsResult(current, asked)) { keep(current); draw(); } else answer();
  },
};

const sidebarActions = {
  open, begin,
  redraw: () => drawSidebar(chats, current, sidebarActions),
  rename(chat, title) { chat.title = title; keep(chat); draw(); },
  remove(chat) {
    if (running && chat === current) return;
    chats = chats.filter(one => one !== chat);
    forget(chat);
    if (chat === current) open(chats.find(one => one.nodes.length)); else draw();
  },
  removeAll() { if (!running) { chats = []; forgetAll(); begin(); } },
  add(found) { found.forEach(keep); chats = [...found, ...chats.filter(chat => !found.some(one => one.id === chat.id))]; open(found[0]); },
};

function cancelEdit() {
  if (editing === null) return;
  editing = null;
  $("input").value = "";
  takeAttachments();
}

function send() {
  const text = $("input").value, last = current.nodes[current.leaf];
  if (running || !(text.trim() || hasAttachments())) return;
  const asked = path(current).findLast(index => current.nodes[index].role === "assistant");
  if (editing === null && last && awaitsResult(current, asked)) return say("this call waits for its result", true);
  const files = takeAttachments(), parent = editing === null ? current.leaf : current.nodes[editing].parent;
  const node = { role: "user", content: text, ...(files.length ? { files } : {}) };
  if (!current.nodes.length) current.title = (text.trim() || files[0].name).slice(0, 60);
  editing = null;
  $("input").value = "";
  append(current, parent, node);
  keep(current);
  rememberOpen();
  answer();
}

function startComposer() {
  $("form").onsubmit = event => { event.preventDefault(); send(); };
  $("input").onkeydown = event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("form").requestSubmit();
  };
  $("input").oninput = growInput;
  $("stop").onclick = () => running?.abort();
  $("cancel").onclick = () => { cancelEdit(); draw(); $("input").focus(); };
  document.onkeydown = event => {
    if (event.key !== "Escape") return;
    running?.abort();
    if (editing !== null) { cancelEdit(); draw(); $("input").focus(); }
    closeSidebar();
  };
  window.onpagehide = () => keepAtOnce(running ? current : null);
}

async function start() {
  const last = sessionStorage.getItem("dsv4.open");
  startSettings(() => connect(draw));
  startAttachments(() => current.used);
  startSidebar(() => chats, sidebarActions);
  startComposer();
  connect(draw);
  draw();
  const history = await openHistory();
  keepsHistory = history !== null;
  chats = [...chats, ...(history ?? []).filter(chat => !chats.some(one => one.id === chat.id))];
  if (!current.nodes.length) open(chats.find(chat => chat.id === last));
}

start();
