"""Conversations as the engine encodes them (docs/spec/serving.md 1.5), with loss weights.

Written without looking at dsv4/chat, so that `check_chat_encoding.py` compares two encoders. It
covers what the model is trained on: system text, tools, thinking, calls and results. It does not
cover prefixes, response formats, strict schemas, reminders and tasks.

Text of the assistant may hold copied values between HOT and COLD; they get a higher loss weight.
"""

import json
from dataclasses import dataclass, field

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THINK_END, DSML = "<think>", "</think>", "｜DSML｜"
HOT, COLD = "\x02", "\x03"
TEMPLATE_WEIGHT, USER_WEIGHT, REPLY_WEIGHT, COPY_WEIGHT = 0, 1, 8, 32  # in quarters, as in data.py

EFFORT_TEXT = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to"
    " resolve the root cause, rigorously stress-testing your logic against all potential paths, edge"
    " cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step,"
    " considered alternative, and rejected hypothesis to ensure absolutely no assumption is left"
    " unchecked.\n\n")
TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<◆tool_calls>" block like the following:

<◆tool_calls>
<◆invoke name="$TOOL_NAME">
<◆parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</◆parameter>
...
</◆invoke>
<◆invoke name="$TOOL_NAME2">
...
</◆invoke>
</◆tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

""".replace("◆", DSML)
TOOLS_TAIL = ("\n\nYou MUST strictly follow the above defined tool name and parameter schemas to"
              " invoke tool calls.\n")


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict


@dataclass(frozen=True)
class Message:
    role: str  # user, assistant or tool
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass
class Conversation:
    messages: list[Message] = field(default_factory=list)
    system: str = ""
    tools: list[dict] = field(default_factory=list)  # {name, description, parameters}
    thinking: bool = False
    most_effort: bool = False


Pieces = list[tuple[str, int]]  # text and loss weight


def copied(value: str) -> str:
    return f"{HOT}{value}{COLD}"


def plain(text: str) -> str:
    return text.replace(HOT, "").replace(COLD, "")


def dumps(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def head(c: Conversation) -> str:
    text = BOS + (EFFORT_TEXT if c.thinking and c.most_effort else "") + c.system
    if c.tools:
        text += "\n\n" + TOOLS_HEAD + "\n".join(map(dumps, c.tools)) + TOOLS_TAIL
    return text


def weighted(text: str) -> Pieces:
    """Text of the assistant, split at its copied values."""
    out: Pieces = []
    for i, part in enumerate(text.replace(COLD, HOT).split(HOT)):
        out.append((part, COPY_WEIGHT if i % 2 else REPLY_WEIGHT))
    return out


def call_pieces(calls: tuple[Call, ...]) -> Pieces:
    out: Pieces = [(f"\n\n<{DSML}tool_calls>\n", REPLY_WEIGHT)]
    for call in calls:
        out += [(f'<{DSML}invoke name="', REPLY_WEIGHT), (call.name, COPY_WEIGHT),
                ('">\n', REPLY_WEIGHT)]
        for key, value in call.arguments.items():
            is_string = isinstance(value, str)
            out += [(f'<{DSML}parameter name="', REPLY_WEIGHT), (key, COPY_WEIGHT),
                    (f'" string="{"true" if is_string else "false"}">', REPLY_WEIGHT),
                    (value if is_string else dumps(value), COPY_WEIGHT),
                    (f"</{DSML}parameter>\n", REPLY_WEIGHT)]
        out.append((f"</{DSML}invoke>\n", REPLY_WEIGHT))
    return [*out, (f"</{DSML}tool_calls>", REPLY_WEIGHT)]


def assistant_pieces(m: Message, shows_reasoning: bool) -> Pieces:
    out: Pieces = [(ASSISTANT, TEMPLATE_WEIGHT)]
    if shows_reasoning:
        out += [(THINK, TEMPLATE_WEIGHT), *weighted(m.reasoning), (THINK_END, REPLY_WEIGHT)]
    else:
        out.append((THINK_END, TEMPLATE_WEIGHT))
    out += weighted(m.content)
    if m.calls:
        out += call_pieces(m.calls)
    return [*out, (EOS, REPLY_WEIGHT)]


def pieces(c: Conversation) -> Pieces:
    """The whole conversation; its last message, of the assistant, is the reply to learn."""
    out: Pieces = [(head(c), TEMPLATE_WEIGHT)]
    blocks: list[str] = []
    for i, m in enumerate(c.messages):
        if m.role != "assistant":
            is_result = m.role == "tool"
            blocks.append(f"<tool_result>{m.content}</tool_result>" if is_result else m.content)
            continue
        out.append((USER + "\n\n".join(blocks), USER_WEIGHT))
        blocks = []
        last = i == len(c.messages) - 1
        out += assistant_pieces(m, c.thinking and (last or bool(c.tools)))
    return out


def request(c: Conversation, count: int) -> dict:
    """The body of /v1/chat/completions with the first `count` messages."""
    messages: list[dict] = [{"role": "system", "content": c.system}] if c.system else []
    ids: list[str] = []
    for i, m in enumerate(c.messages[:count]):
        body: dict = {"role": m.role, "content": plain(m.content)}
        if m.role == "tool":
            body["tool_call_id"] = ids.pop(0)
        if m.role == "assistant" and m.reasoning:
            body["reasoning_content"] = plain(m.reasoning)
        if m.calls:
            ids = [f"call_{i}_{k}" for k in range(len(m.calls))]
            body["tool_calls"] = [
                {"id": id_, "type": "function",
                 "function": {"name": call.name, "arguments": dumps(call.arguments)}}
                for id_, call in zip(ids[:], m.calls)]
        messages.append(body)
    out = {"messages": messages, "thinking": {"type": "enabled" if c.thinking else "disabled"}}
    if c.tools:
        out["tools"] = [{"type": "function", "function": tool} for tool in c.tools]
    if c.thinking and c.most_effort:
        out["reasoning_effort"] = "max"
    return out
