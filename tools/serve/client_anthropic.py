"""The Anthropic SDK."""

import anthropic
from scenarios import *  # noqa: F403

NAME = f"anthropic {anthropic.__version__}"
client = anthropic.Anthropic(base_url=scripted_url, api_key="none", max_retries=0)
create = client.messages.create


@scenario(NAME, "plain")
def _():
    answer = create(model="demo", max_tokens=100, messages=user("Hi"))
    assert answer.content[0].text == PLAIN and answer.stop_reason == "end_turn", answer
    if hasattr(client.messages, "count_tokens"):
        counted = client.messages.count_tokens(model="demo", messages=user("Hi")).input_tokens
        assert counted == answer.usage.input_tokens


@scenario(NAME, "stream")
def _():
    with client.messages.stream(model="demo", max_tokens=100, messages=user("Hi")) as stream:
        assert "".join(stream.text_stream) == PLAIN
        assert stream.get_final_message().usage.output_tokens > 0


def round_trip(question, kinds, **extra):
    messages = user(question)
    answer = create(model="demo", max_tokens=2000, messages=messages, tools=[ANTHROPIC_TOOL], **extra)
    assert [block.type for block in answer.content] == kinds, answer
    call = answer.content[-1]
    assert call.input == {"city": "Oslo"} and answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
                 {"role": "user", "content": [result]}]
    last = create(model="demo", max_tokens=2000, messages=messages, tools=[ANTHROPIC_TOOL], **extra)
    assert last.stop_reason == "end_turn", last
    with client.messages.stream(model="demo", max_tokens=2000, messages=user(question), tools=[ANTHROPIC_TOOL],
                                **extra) as stream:
        assert stream.get_final_message().content[-1].input == {"city": "Oslo"}


@scenario(NAME, "tools")
def _():
    round_trip("weather", ["tool_use"])


@scenario(NAME, "thinking")
def _():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    # Releases that do not know the field send it as it is, and read the blocks untyped.
    body = {"extra_body": {"thinking": thinking}} if anthropic.__version__.startswith("0.4") else {"thinking": thinking}
    round_trip("weather, thinking", ["thinking", "tool_use"], **body)


@scenario(NAME, "error")
def _():
    expect_error(lambda: create(model="demo", max_tokens=10, messages=[]), anthropic.BadRequestError, "messages")
    expect_error(lambda: create(model="none", max_tokens=10, messages=user("Hi")), anthropic.NotFoundError, "none")


@scenario(NAME, "cancel")
def _():
    with client.messages.stream(model="demo", max_tokens=2000, messages=user("forever")) as stream:
        next(iter(stream.text_stream))
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: create(model="demo", max_tokens=50, messages=user("Hi")).content[0].text)


@scenario(NAME, "format")
def _():
    model = anthropic.Anthropic(base_url=model_url, api_key="none", max_retries=0)
    forced = model.messages.create(
        model="demo", max_tokens=300, messages=user("weather"), tool_choice={"type": "tool", "name": "get"},
        tools=[{"name": "get", "input_schema": {"type": "object", "required": ["city"],
                                                "properties": {"city": {"enum": ["Oslo", "Rome"]}}}}])
    assert forced.content[-1].input["city"] in ("Oslo", "Rome"), forced
