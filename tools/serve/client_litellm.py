"""LiteLLM, by its OpenAI and its Anthropic route."""

import importlib.metadata
import json

import litellm
from scenarios import *  # noqa: F403

NAME = f"litellm {importlib.metadata.version('litellm')}"
litellm.suppress_debug_info = True
OPENAI = {"model": "openai/demo", "api_base": scripted_url + "/v1", "api_key": "none", "max_retries": 0}
ANTHROPIC = {"model": "anthropic/demo", "api_base": scripted_url, "api_key": "none", "max_retries": 0, "max_tokens": 500}


def ask(text, route=OPENAI, **extra):
    return litellm.completion(messages=user(text), **route, **extra)


@scenario(NAME, "plain")
def _():
    for route in (OPENAI, ANTHROPIC):
        assert ask("Hi", route).choices[0].message.content == PLAIN


@scenario(NAME, "stream")
def _():
    for route in (OPENAI, ANTHROPIC):
        chunks = list(ask("Hi", route, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == PLAIN, chunks


@scenario(NAME, "tools")
def _():
    for route in (OPENAI, ANTHROPIC):
        message = ask("weather", route, tools=[OPENAI_TOOL]).choices[0].message
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Oslo"}, message
        messages = user("weather") + [message.model_dump(exclude_none=True),
                                      {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        answer = litellm.completion(messages=messages, tools=[OPENAI_TOOL], **route)
        assert answer.choices[0].message.content == AFTER_TOOL, answer


@scenario(NAME, "thinking")
def _():
    message = ask("ponder", extra_body=THINKING).choices[0].message
    assert message.reasoning_content == "Hm." and message.content == "Done.", message
    message = ask("ponder", ANTHROPIC | {"max_tokens": 3000},
                  thinking={"type": "enabled", "budget_tokens": 1024},
                  allowed_openai_params=["thinking"]).choices[0].message  # it knows the model by its name only
    assert message.reasoning_content == "Hm." and message.content == "Done.", message


@scenario(NAME, "error")
def _():
    expect_error(lambda: ask("Hi", OPENAI | {"model": "openai/none"}), litellm.NotFoundError, "none")
    expect_error(lambda: ask("Hi", temperature=9), litellm.BadRequestError, "temperature")


@scenario(NAME, "cancel")
def _():
    stream = ask("forever", stream=True)
    next(iter(stream))
    stream.completion_stream.close()
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: ask("Hi").choices[0].message.content)


@scenario(NAME, "format")
def _():
    schema = {"type": "object", "properties": {"legs": {"enum": [2, 4]}}, "required": ["legs"],
              "additionalProperties": False}
    answer = ask("json", OPENAI | {"api_base": model_url + "/v1"}, max_tokens=100,
                 response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    assert json.loads(answer.choices[0].message.content)["legs"] in (2, 4), answer
