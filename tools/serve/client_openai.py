"""The OpenAI SDK: chat, completions, and Responses where the release has them."""

import json

import openai
import pydantic
from scenarios import *  # noqa: F403

NAME = f"openai {openai.__version__}"
client = openai.OpenAI(base_url=scripted_url + "/v1", api_key="none", max_retries=0)
create = client.chat.completions.create


@scenario(NAME, "plain")
def _():
    answer = create(model="demo", messages=user("Hi"))
    assert answer.choices[0].message.content == PLAIN, answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert client.models.list().data[0].id == "demo"
    assert client.completions.create(model="demo", prompt="Hi").choices[0].text == PLAIN
    several = create(model="demo", messages=user("Hi"), n=2, logprobs=True)
    assert len(several.choices) == 2 and several.choices[1].logprobs.content[0].bytes


@scenario(NAME, "stream")
def _():
    chunks = list(create(model="demo", messages=user("Hi"), stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == PLAIN and chunks[-1].usage.completion_tokens > 0, chunks


@scenario(NAME, "tools")
def _():
    messages = user("weather")
    message = create(model="demo", messages=messages, tools=[OPENAI_TOOL]).choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = create(model="demo", messages=messages, tools=[OPENAI_TOOL])
    assert answer.choices[0].message.content == AFTER_TOOL, answer
    arguments = ""
    for chunk in create(model="demo", messages=user("weather"), tools=[OPENAI_TOOL], stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            arguments += part.function.arguments or ""
    assert json.loads(arguments) == {"city": "Oslo"}, arguments


@scenario(NAME, "thinking")
def _():
    messages = user("weather, thinking")
    message = create(model="demo", messages=messages, tools=[OPENAI_TOOL], extra_body=THINKING).choices[0].message
    assert message.reasoning_content == "I look."
    call = message.tool_calls[0]
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = create(model="demo", messages=messages, tools=[OPENAI_TOOL], extra_body=THINKING)
    assert answer.choices[0].finish_reason == "stop", answer


@scenario(NAME, "error")
def _():
    expect_error(lambda: create(model="none", messages=user("Hi")), openai.NotFoundError, "none")
    expect_error(lambda: create(model="demo", messages=user("Hi"), temperature=9), openai.BadRequestError, "temperature")


@scenario(NAME, "cancel")
def _():
    stream = create(model="demo", messages=user("forever"), stream=True)
    next(iter(stream))
    stream.close()
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: create(model="demo", messages=user("Hi")).choices[0].message.content)


class Farm(pydantic.BaseModel, extra="forbid"):
    animal: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=8)


@scenario(NAME, "format")
def _():
    parse = client.beta.chat.completions.parse if hasattr(client.beta, "chat") else None
    if parse is None:
        raise NotApplicable("no .parse")
    bundled = openai.OpenAI(base_url=model_url + "/v1", api_key="none", max_retries=0).beta.chat.completions.parse
    # A bound that the SDK's strict form would drop is in the class, so pydantic checks it again.
    schema = {"type": "json_schema", "json_schema": {"name": "farm", "schema": Farm.model_json_schema()}}
    answer = openai.OpenAI(base_url=model_url + "/v1", api_key="none").chat.completions.create(
        model="demo", messages=user("A farm, in json"), response_format=schema, max_tokens=200, seed=1)
    Farm.model_validate_json(answer.choices[0].message.content)

    class Fact(pydantic.BaseModel):
        true: bool
        kind: list[bool]

    fact = bundled(model="demo", messages=user("A fact"), response_format=Fact, max_tokens=300, seed=2).choices[0].message
    assert fact.parsed.true in (True, False), fact


@scenario(NAME, "responses")
def _():
    if not hasattr(client, "responses"):
        raise NotApplicable("this release has no Responses API")
    tool = {"type": "function", "name": "get", "parameters": SCHEMA}
    assert client.responses.create(model="demo", input="Hi").output_text == PLAIN
    events = list(client.responses.create(model="demo", input="Hi", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[-1].type == "response.completed" and events[-1].response.output_text == PLAIN
    extra = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}}
    items = user("weather, thinking")
    answer = client.responses.create(model="demo", input=items, tools=[tool], **extra)
    call = answer.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Oslo"}, answer
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert client.responses.create(model="demo", input=items, tools=[tool], **extra).status == "completed"
    expect_error(lambda: client.responses.create(model="demo", input="Hi", previous_response_id="resp_1"),
                 openai.BadRequestError, "previous_response_id")
