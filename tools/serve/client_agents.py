"""Requests in the form of coding agents: Claude Code over Messages, Codex over Responses, opencode over chat. The bodies
are written by hand after what these clients send; their fields that have no effect here must not be errors."""

import json

from scenarios import *  # noqa: F403


def post(path, body, **headers):
    """The events of a stream as (name, JSON), or the JSON of a whole answer."""
    request = urllib.request.Request(scripted_url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        return json.loads(text)
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if lines.get("data", "[DONE]") != "[DONE]":
            events.append((lines.get("event"), json.loads(lines["data"])))
    return events


CACHE = {"cache_control": {"type": "ephemeral"}}


def claude_code(messages, **extra):
    return post("/v1/messages?beta=true", {
        "model": "demo", "max_tokens": 2000, "stream": True, "temperature": 1,
        "system": [{"type": "text", "text": "You are a coding agent.", **CACHE},
                   {"type": "text", "text": "Be brief.", **CACHE}],
        "metadata": {"user_id": "user_0_account__session_0"},
        "tools": [ANTHROPIC_TOOL | CACHE], "messages": messages, **extra,
    }, **{"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14",
          "x-api-key": "none", "x-app": "cli"})


@scenario("Claude Code's form", "tools")
def _():
    question = {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nA note.\n</system-reminder>"},
                                            {"type": "text", "text": "weather, thinking", **CACHE}]}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "context_management": {"edits": []}}
    blocks = []
    for name, event in claude_code([question], **thinking):
        if name == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif name == "content_block_delta":
            delta = event["delta"]
            key = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json",
                   "signature_delta": "signature"}[delta["type"]]
            blocks[-1][key] = blocks[-1].get(key, "") + delta[key]
    assert [b["type"] for b in blocks] == ["thinking", "tool_use"], blocks
    call = blocks[-1]
    call["input"] = json.loads(call.pop("partial_json"))
    assert call["input"] == {"city": "Oslo"}
    result = {"type": "tool_result", "tool_use_id": call["id"], "is_error": False,
              "content": [{"type": "text", "text": "sunny"}], **CACHE}
    history = [question, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    last = claude_code(history, **thinking)
    assert last[-1][0] == "message_stop" and last[-2][1]["delta"]["stop_reason"] == "end_turn", last
    counted = post("/v1/messages/count_tokens?beta=true", {"model": "demo", "messages": history, "tools": [ANTHROPIC_TOOL]})
    assert counted["input_tokens"] > 20


CODEX = {
    "model": "demo", "instructions": "You are a coding agent.", "tool_choice": "auto", "parallel_tool_calls": False,
    "reasoning": {"effort": "high", "summary": "auto"}, "store": False, "stream": True,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0", "text": {"verbosity": "medium"},
    "client_metadata": {"session": "0"},
    "tools": [{"type": "function", "name": "get", "description": "Weather", "strict": False, "parameters": SCHEMA},
              {"type": "custom", "name": "apply_patch", "description": "Edit files",
               "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
              {"type": "web_search", "external_web_access": False}],
}


@scenario("Codex's form", "tools")
def _():
    def part(role, text):
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
    items = [part("developer", "A note."), part("user", "<environment_context>\n</environment_context>"),
             part("user", "weather")]
    events = post("/v1/responses", CODEX | {"input": items})
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    done = [event["item"] for name, event in events if name == "response.output_item.done"]
    assert json.loads(done[-1]["arguments"]) == {"city": "Oslo"}, done
    items += done + [{"type": "function_call_output", "call_id": done[-1]["call_id"], "output": "sunny"}]
    last = post("/v1/responses", CODEX | {"input": items})
    assert last[-1][0] == "response.completed", last
    assert last[-1][1]["response"]["output"][-1]["content"][0]["text"] == AFTER_TOOL, last


@scenario("opencode's form", "tools")
def _():
    body = {"model": "demo", "max_tokens": 2000, "temperature": 0, "top_p": 1, "stream": True, "tool_choice": "auto",
            "stream_options": {"include_usage": True},
            "tools": [OPENAI_TOOL]}
    messages = [{"role": "system", "content": "You are a coding agent."}, *user("weather")]
    call = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
    usage = None
    for _, chunk in post("/v1/chat/completions", body | {"messages": messages}):
        usage = chunk.get("usage") or usage
        for piece in (chunk["choices"][0]["delta"].get("tool_calls") or []) if chunk["choices"] else []:
            call["id"] = piece.get("id") or call["id"]
            call["function"]["name"] += piece["function"].get("name") or ""
            call["function"]["arguments"] += piece["function"].get("arguments") or ""
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"} and usage["completion_tokens"] > 0
    messages += [{"role": "assistant", "content": "", "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "sunny"}]}]
    pieces = [chunk["choices"][0]["delta"].get("content") or ""
              for _, chunk in post("/v1/chat/completions", body | {"messages": messages}) if chunk["choices"]]
    assert "".join(pieces) == AFTER_TOOL, pieces
