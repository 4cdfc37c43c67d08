"""pydantic-ai over the OpenAI routes: agents with tools, structured output by tools and by json_schema."""

import asyncio
import importlib.metadata

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import *  # noqa: F403

NAME = f"pydantic-ai {importlib.metadata.version('pydantic-ai-slim')}"


def model(url=scripted_url):
    return OpenAIChatModel("demo", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))


class Animal(pydantic.BaseModel, extra="forbid"):
    legs: bool
    tail: bool


@scenario(NAME, "plain")
def _():
    assert Agent(model()).run_sync("Hi").output == PLAIN


@scenario(NAME, "stream")
def _():
    async def run():
        async with Agent(model()).run_stream("Hi") as result:
            return "".join([part async for part in result.stream_text(delta=True)])
    assert asyncio.run(run()) == PLAIN


@scenario(NAME, "tools")
def _():
    agent, asked = Agent(model()), []

    @agent.tool_plain
    def get(city: str) -> str:
        """Weather."""
        asked.append(city)
        return "sunny"
    assert agent.run_sync("weather").output == AFTER_TOOL and asked == ["Oslo"]


@scenario(NAME, "thinking")
def _():
    agent = Agent(model(), model_settings={"extra_body": THINKING})
    result = agent.run_sync("ponder")
    kinds = [part.part_kind for part in result.all_messages()[-1].parts]
    assert result.output == "Done." and "thinking" in kinds, kinds


@scenario(NAME, "error")
def _():
    from pydantic_ai.exceptions import ModelHTTPError
    expect_error(lambda: Agent(model(), model_settings={"temperature": 9}).run_sync("Hi"), ModelHTTPError, "temperature")


@scenario(NAME, "cancel")
def _():
    async def run():
        async with Agent(model()).run_stream("forever") as result:
            async for _ in result.stream_text(delta=True):
                break
    asyncio.run(run())
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    async def run():
        agent = Agent(model())
        return await asyncio.gather(*(agent.run("Hi") for _ in range(20)))
    assert all(result.output == PLAIN for result in asyncio.run(run()))


@scenario(NAME, "format")
def _():
    settings = {"max_tokens": 400, "seed": 1}
    for output in (Animal, NativeOutput(Animal)):
        found = Agent(model(model_url), output_type=output, model_settings=settings).run_sync("An animal").output
        assert isinstance(found, Animal), found
