// One answer while it comes: requests it, adds what arrives to its node, and saves that every half second, so that a reload,
// a crash or a lost connection keeps the part that was there. Until the answer is complete its `ending` says "interrupted".

import { streamAnswer } from "./api.js";
import { requestFields, systemPrompt } from "./settings.js";
import { keep } from "./storage.js";
import { path, requestMessages } from "./tree.js";

const SAVE_EVERY_MS = 500;

// The body of the request for the answer after the last of `indices`, or that continues it. Throws where the tools are no JSON.
export function requestBody(chat, indices, continued) {
  const system = systemPrompt(), messages = requestMessages(chat, indices, !!continued);
  if (system) messages.unshift({ role: "system", content: system });
  return { ...requestFields(continued), messages };
}

function add(delta, node, times) {
  if (delta.reasoning_content) node.reasoning_content = (node.reasoning_content ?? "") + delta.reasoning_content;
  if ((delta.content || delta.tool_calls) && node.reasoning_content) node.think_seconds ??= (performance.now() - times.begin) / 1000;
  node.content += delta.content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    node.tool_calls ??= [];
    const call = node.tool_calls[piece.index] ??= { id: piece.id, type: "function", function: { name: "", arguments: "" } };
    if (piece.function?.name) call.function.name = piece.function.name;
    call.function.arguments += piece.function?.arguments ?? "";
  }
}

function statsOf(usage, times) {
  if (!usage?.completion_tokens || !times.first) return undefined;
  const seconds = (performance.now() - times.first) / 1000, cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const speed = seconds > 0.05 ? [`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tok/s`] : [];  // else all came at once
  return [`${usage.completion_tokens} tokens`, ...speed, `first after ${((times.first - times.begin) / 1000).toFixed(2)} s`,
    `${Math.round(100 * cached / Math.max(usage.prompt_tokens, 1))} % cached`].join(", ");
}

function finish(chat, node, times, usage) {
  if (node.reasoning_content) node.think_seconds ??= (performance.now() - times.begin) / 1000;
  for (const call of node.tool_calls ?? []) {
    try { JSON.parse(call.function.arguments); } catch { call.cut = true; }
  }
  node.stats = statsOf(usage, times);
  if (!usage) return;
  node.think_tokens = usage.completion_tokens_details?.reasoning_tokens || undefined;
  chat.used = usage.total_tokens;
}

// Fills the last node of the conversation from the server. `onPart` is called when some of it has arrived. Returns whether
// anything came; what went wrong is in the node.
export async function receiveAnswer(chat, body, signal, onPart) {
  const node = chat.nodes[path(chat).at(-1)], times = { begin: performance.now(), first: 0, saved: performance.now() };
  let usage = null, ending = "interrupted";
  node.ending = ending;
  delete node.error;
  keep(chat);
  try {
    for await (const chunk of streamAnswer(body, signal)) {
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0], delta = choice?.delta;
      if (choice?.finish_reason) ending = choice.finish_reason === "length" ? "length" : undefined;
      if (!delta) continue;
      if (delta.content || delta.reasoning_content || delta.tool_calls) times.first ||= performance.now();
      add(delta, node, times);
      if (performance.now() - times.saved > SAVE_EVERY_MS) { times.saved = performance.now(); keep(chat); }
      onPart();
    }
  } catch (error) {
    ending = error.name === "AbortError" ? "stopped" : "failed";
    if (ending === "failed") node.error = error instanceof TypeError ? "the server does not answer" : error.message;
  }
  node.ending = ending;
  finish(chat, node, times, usage);
  keep(chat);
  return times.first > 0;
}
