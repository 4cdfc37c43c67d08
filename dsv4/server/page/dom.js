// Small helpers for the elements of the page. Text always becomes a text node: nothing here reads HTML.

export const $ = id => document.getElementById(id);

// make("a", { href: "/", "aria-label": "Home" }, "text", element): names with a dash become attributes, others properties.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value); else element[name] = value;
  }
  element.append(...children);
  return element;
}

// Makes `wanted` the children of an element. Those at their place already are not touched, so that they keep the focus and a
// selection.
export function setChildren(element, wanted) {
  for (const child of [...element.childNodes]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((child, place) => {
    if (element.childNodes[place] !== child) element.insertBefore(child, element.childNodes[place] ?? null);
  });
}

// A small button. `key` names it across redraws, so that the focus can return to it.
export function smallButton(text, key, action, label) {
  const button = make("button", { className: "small", type: "button", textContent: text });
  if (label) { button.setAttribute("aria-label", label); button.title = label; }
  button.dataset.key = key;
  button.onclick = () => action(button);
  return button;
}

// The line at the top that says how the server and the page are doing.
export function say(text, isError = false) {
  $("state").textContent = text;
  $("state").classList.toggle("error", isError);
}

export async function copyText(text, button) {
  const before = button.textContent;
  try {
    if (!navigator.clipboard) throw new Error("no clipboard");
    await navigator.clipboard.writeText(text);
  } catch {  // a page without TLS from another machine has no clipboard object
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}
