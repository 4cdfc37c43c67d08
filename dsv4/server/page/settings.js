// The settings of the side panel: kept in the browser, and read when a request is made. The API key is kept for this tab only.

import { $ } from "./dom.js";

const KEPT = ["effort", "system", "temperature", "top_p", "max_tokens", "tools", "theme"], NUMBERS = ["temperature", "top_p", "max_tokens"];

function showTheme() {
  if ($("theme").value) document.documentElement.dataset.theme = $("theme").value;
  else delete document.documentElement.dataset.theme;
}

function stored(key) {
  try {
    const value = JSON.parse(localStorage.getItem(key));
    return typeof value === "string" ? value : "";
  } catch { return ""; }
}

export function startSettings(onNewKey) {
  for (const key of KEPT) {
    $(key).value = stored("dsv4." + key);
    $(key).onchange = () => { localStorage.setItem("dsv4." + key, JSON.stringify($(key).value)); showTheme(); };
  }
  showTheme();
  $("key").value = sessionStorage.getItem("dsv4.key") ?? "";
  $("key").onchange = () => { sessionStorage.setItem("dsv4.key", $("key").value); onNewKey(); };
}

export const systemPrompt = () => $("system").value;

// The fields of a request. A continued answer cannot have tools, and thinks if it thought before.
export function requestFields(continued) {
  const fields = {}, effort = $("effort").value;
  for (const key of NUMBERS) if ($(key).value) fields[key] = Number($(key).value);
  if (effort) fields.thinking = { type: effort === "off" ? "disabled" : "enabled" };
  if (effort && effort !== "off") fields.reasoning_effort = effort;
  if (continued?.reasoning_content) fields.thinking = { type: "enabled" };
  if (!continued && $("tools").value.trim()) fields.tools = JSON.parse($("tools").value);
  return fields;
}
