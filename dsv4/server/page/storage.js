// Conversations in the browser's IndexedDB, one record each, so that a large attachment fits and two tabs do not overwrite
// each other's conversations. Its writes need a moment, in which the page may be left: what is not written then goes to the
// localStorage at once, and from there to the database when the page is opened again. Without IndexedDB (some private
// windows) nothing is kept.

import { say } from "./dom.js";
import { readConversation } from "./tree.js";

const STORE = "conversations", OLD_KEY = "dsv4.chats", UNSAVED = "dsv4.unsaved.";
const pending = new Map();  // conversation: how many of its writes are under way
let opening = null;  // a promise of the database, or of null where there is none

const done = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function open() {
  const request = indexedDB.open("dsv4", 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return done(request);
}

async function change(action) {
  const database = await opening;
  if (!database) return;
  try {
    const transaction = database.transaction(STORE, "readwrite"), request = action(transaction.objectStore(STORE));
    transaction.commit();
    await done(request);
  } catch (error) {
    say(error?.name === "QuotaExceededError" ? "the history is full: export and delete some of it" : "the history cannot be written", true);
  }
}

// The list of conversations that earlier pages kept as one string.
async function moveOldHistory() {
  let list = [];
  try { list = JSON.parse(localStorage.getItem(OLD_KEY)) ?? []; } catch { /* damaged: it is dropped */ }
  for (const value of Array.isArray(list) ? list : []) {
    const chat = readConversation(value);
    if (chat) await keep(chat);
  }
  localStorage.removeItem(OLD_KEY);
}

// What the page could not write before it was left.
async function moveUnsaved() {
  for (const key of Object.keys(localStorage).filter(one => one.startsWith(UNSAVED))) {
    let chat = null;
    try { chat = readConversation(JSON.parse(localStorage.getItem(key))); } catch { /* damaged: it is dropped */ }
    if (chat) await keep(chat);
    localStorage.removeItem(key);
  }
}

// All conversations, the newest first; null where nothing is kept.
export async function openHistory() {
  opening = Promise.resolve().then(open).catch(() => null);
  const database = await opening;
  if (!database) return null;
  await moveOldHistory();
  await moveUnsaved();
  const records = await done(database.transaction(STORE).objectStore(STORE).getAll());
  return records.map(readConversation).filter(Boolean).sort((a, b) => b.created - a.created);
}

export async function keep(chat) {
  if (!chat.nodes.length) return;
  pending.set(chat, (pending.get(chat) ?? 0) + 1);
  await change(all => all.put(chat));
  const left = (pending.get(chat) ?? 1) - 1;  // 0 where it was deleted meanwhile
  if (left) pending.set(chat, left); else pending.delete(chat);
}

export function forget(chat) {
  pending.delete(chat);
  return change(all => all.delete(chat.id));
}

export function forgetAll() {
  pending.clear();
  return change(all => all.clear());
}

// For the moment in which the page is left; `changing` is a conversation whose answer is coming, or null.
export function keepAtOnce(changing) {
  if (changing) pending.set(changing, 1);
  for (const chat of pending.keys()) {
    try { localStorage.setItem(UNSAVED + chat.id, JSON.stringify(chat)); } catch { /* too large: the last write counts */ }
  }
}
