// Text files that go with the next message: from the button, dropped on the page, or pasted. A file must be UTF-8, and all of
// them must fit into what the conversation has left of the model's context, as the server's tokenizer counts it.

import { countTokens, server } from "./api.js";
import { $, make, say, smallButton } from "./dom.js";

const MOST_BYTES_PER_TOKEN = 8;  // no text that fits has more: such a file is refused before it is read
let attached = [];               // { name, text, tokens }

function draw() {
  $("attached").replaceChildren(...attached.map(file => make("li", {}, `${file.name}, ${file.tokens} tokens`,
    smallButton("×", "", () => { attached = attached.filter(one => one !== file); draw(); $("input").focus(); }, "Remove " + file.name))));
  $("attached").hidden = !attached.length;
}

async function read(file, room) {
  const { context } = server;
  if (context && file.size > context * MOST_BYTES_PER_TOKEN) throw new Error(`${file.size} bytes do not fit a context of ${context} tokens`);
  const bytes = await file.arrayBuffer();
  let text;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { throw new Error("is no text in UTF-8"); }
  if (text.includes("\0")) throw new Error("is no text");
  const tokens = await countTokens(text);
  if (context && tokens > room()) throw new Error(`its ${tokens} tokens do not fit: the context has ${room()} left`);
  return { name: file.name, text, tokens };
}

// `used()`: tokens that the conversation takes already.
export function startAttachments(used) {
  const room = () => Math.max(server.context - used() - attached.reduce((sum, file) => sum + file.tokens, 0), 0);
  const add = async files => {
    for (const file of files) {
      try { attached.push(await read(file, room)); } catch (error) { say(`${file.name}: ${error.message}`, true); }
    }
    draw();
    $("input").focus();
  };
  $("attach").onclick = () => $("attach_file").click();
  $("attach_file").onchange = async () => { await add([...$("attach_file").files]); $("attach_file").value = ""; };
  $("input").onpaste = event => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add([...event.clipboardData.files]);
  };
  const hasFiles = event => event.dataTransfer?.types.includes("Files");
  document.ondragover = event => { if (hasFiles(event)) { event.preventDefault(); document.body.classList.add("dropping"); } };
  document.ondragleave = event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); };
  document.ondrop = event => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  };
}

// What is attached; afterwards it is `next`: nothing, or the files of a message that is edited.
export function takeAttachments(next = []) {
  const taken = attached.map(({ name, text, tokens }) => ({ name, text, tokens }));
  attached = [...next];
  draw();
  return taken;
}

export const hasAttachments = () => attached.length > 0;
