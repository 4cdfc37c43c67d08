// The server's HTTP API as the page uses it: readiness, the model, streamed answers, counts of tokens.

import { $, say } from "./dom.js";

export const server = { model: "", context: 0 };  // the first model and its context in tokens
let retry = 0;

function headers() {
  const out = { "Content-Type": "application/json" };
  if ($("key").value) out.Authorization = "Bearer " + $("key").value;
  return out;
}

const post = (path, body, signal) => fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
async function errorOf(response) {
  try { return (await response.json()).error.message; } catch { return response.statusText || `status ${response.status}`; }
}

// Finds the model, and tries again while the server starts. `onModel` is called when another model answers.
export async function connect(onModel) {
  const again = seconds => { clearTimeout(retry); retry = setTimeout(() => connect(onModel), seconds * 1000); };
  try {
    const ready = await (await fetch("/ready")).json();
    if (ready.status !== "ready") { say(`the server is ${ready.status}`); return again(1); }
    const response = await fetch("/v1/models", { headers: headers() });
    if (response.status === 401) return say("this server needs an API key: see Settings", true);
    const first = (await response.json()).data[0], isNew = server.model !== first.id;
    Object.assign(server, { model: first.id, context: first.context_length });
    say(server.model);
    if (isNew) onModel();
  } catch { say("the server does not answer", true); again(3); }
}

// The chunks of a streamed answer.
export async function* streamAnswer(fields, signal) {
  const body = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...fields };
  if (server.model) body.model = server.model;  // else the server's first one
  const response = await post("/v1/chat/completions", body, signal);
  if (!response.ok) throw new Error(await errorOf(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (buffer + value).split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: {")) continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

// How many tokens a text is, as the server's tokenizer counts them.
export async function countTokens(text) {
  const response = await post("/v1/messages/count_tokens", { model: server.model, messages: [{ role: "user", content: text }] });
  if (!response.ok) throw new Error(await errorOf(response));
  return (await response.json()).input_tokens;
}
