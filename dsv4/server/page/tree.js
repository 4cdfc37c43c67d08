// A conversation as a tree of messages, without any element of the page.
//
//   conversation = { id, title, created, nodes: [node, ...], leaf, used }
//   node = { parent, role, content, ... }       parent: an index below the node's own, or -1
//
// Nodes are only ever appended. An edited message and a regenerated answer are new nodes beside the old ones; `leaf` is the
// last node of the version on the screen. What a file or the browser's storage holds is checked before it is used.

export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", created: Date.now(), nodes: [], leaf: -1, used: 0 };
}

// The indices of the nodes on the screen, first to last.
export function path(chat) {
  const indices = [];
  for (let at = chat.leaf; at >= 0; at = chat.nodes[at].parent) indices.unshift(at);
  return indices;
}

// Appends a node after `parent` and shows it; returns its index.
export function append(chat, parent, node) {
  chat.leaf = chat.nodes.push({ ...node, parent }) - 1;
  return chat.leaf;
}

// Takes back the last appended node; the version that ends at `leaf` is shown.
export function takeBack(chat, leaf) {
  chat.nodes.pop();
  chat.leaf = leaf;
}

// The versions of a node: all that continue the same message, itself included.
export function versions(chat, index) {
  const { parent } = chat.nodes[index];
  return chat.nodes.flatMap((node, other) => node.parent === parent ? [other] : []);
}

// Shows the version of a message that is `step` versions further, with the newest messages after it.
export function switchVersion(chat, index, step) {
  const all = versions(chat, index), next = all[all.indexOf(index) + step];
  if (next === undefined) return;
  chat.leaf = next;
  for (;;) {
    const child = chat.nodes.findLastIndex(node => node.parent === chat.leaf);
    if (child < 0) return;
    chat.leaf = child;
  }
}

// The results that the calls of a node got, by the id of the call.
export function resultsAfter(chat, index) {
  const indices = path(chat), results = new Map();
  for (const at of indices.slice(indices.indexOf(index) + 1)) {
    const node = chat.nodes[at];
    if (node.role !== "tool") break;
    results.set(node.tool_call_id, node.content);
  }
  return results;
}

// Whether a call of this node still waits for its result.
export function awaitsResult(chat, index) {
  const results = resultsAfter(chat, index);
  return (chat.nodes[index]?.tool_calls ?? []).some(call => !call.cut && !results.has(call.id));
}

// The form in which DeepSeek's models were trained to read files.
export function withFiles(node) {
  const files = (node.files ?? []).map(file => `[file name]: ${file.name}\n[file content begin]\n${file.text}\n[file content end]\n`);
  return files.join("") + node.content;
}

// The messages of a request. With `continued` the last one is an answer that the model is to go on with.
export function requestMessages(chat, indices, continued) {
  return indices.flatMap((at, place) => {
    const node = chat.nodes[at], goesOn = continued && place === indices.length - 1;
    const calls = (node.tool_calls ?? []).filter(call => !call.cut);
    if (node.role === "assistant" && !node.content && !calls.length && !goesOn) return [];  // it failed before it said anything
    const message = { role: node.role, content: withFiles(node) };
    if (node.reasoning_content) message.reasoning_content = node.reasoning_content;
    if (calls.length) message.tool_calls = calls.map(call => ({ id: call.id, type: "function", function: call.function }));
    if (node.tool_call_id) message.tool_call_id = node.tool_call_id;
    if (goesOn) message.prefix = true;
    return [message];
  });
}

export function holds(chat, words) {
  const found = text => text.toLowerCase().includes(words.toLowerCase());
  return found(chat.title) || chat.nodes.some(node => found(node.content));
}

const isText = (value, optional) => typeof value === "string" || (optional && value === undefined);
const isCall = call => isText(call?.id) && isText(call.function?.name) && isText(call.function.arguments);
const isFile = file => isText(file?.name) && isText(file.text);
function isNode(node, index) {
  const calls = node?.tool_calls ?? [], files = node?.files ?? [];
  return ["user", "assistant", "tool"].includes(node?.role) && isText(node.content) &&
    Number.isInteger(node.parent) && node.parent >= -1 && node.parent < index &&
    Array.isArray(calls) && calls.every(isCall) && Array.isArray(files) && files.every(isFile) &&
    ["reasoning_content", "error", "ending", "stats", "tool_call_id"].every(key => isText(node[key], true)) &&
    Number.isFinite(node.think_seconds ?? 0);
}

// A conversation that this page wrote, or null. Earlier pages wrote a list of messages without versions.
export function readConversation(value) {
  const list = value?.nodes ?? value?.messages;
  if (!Array.isArray(list) || !list.length) return null;
  const nodes = value.nodes ?? list.map((message, index) => ({ ...message, parent: index - 1 }));
  if (!nodes.every(isNode)) return null;
  const fresh = newConversation(), { id, title, created, leaf, used } = value;
  return {
    id: isText(id) ? id : fresh.id, title: isText(title) ? title : "", created: Number.isFinite(created) ? created : fresh.created, nodes,
    leaf: Number.isInteger(leaf) && leaf >= 0 && leaf < nodes.length ? leaf : nodes.length - 1, used: Number.isFinite(used) ? used : 0,
  };
}
