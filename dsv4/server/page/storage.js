// Conversations in the browser's IndexedDB, one record each, so that a large attachment fits and two tabs do not overwrite
// each other's conversations. Without IndexedDB (some private windows) nothing is kept, and the page says so.

import { say } from "./dom.js";
import { readConversation } from "./tree.js";

const STORE = "conversations", OLD_KEY = "dsv4.chats";
let database = null;

const done = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function store(mode) { return database.transaction(STORE, mode).objectStore(STORE); }

async function change(action) {
  if (!database) return;
  try { await done(action(store("readwrite"))); } catch (error) {
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

// All conversations, the newest first.
export async function openHistory() {
  try {
    const opening = indexedDB.open("dsv4", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
    database = await done(opening);
    await moveOldHistory();
    const records = await done(store("readonly").getAll());
    return records.map(readConversation).filter(Boolean).sort((a, b) => b.created - a.created);
  } catch {
    say("this browser keeps no history", true);
    return [];
  }
}

export function keep(chat) { return chat.nodes.length ? change(all => all.put(chat)) : Promise.resolve(); }
export function forget(chat) { return change(all => all.delete(chat.id)); }
export function forgetAll() { return change(all => all.clear()); }
