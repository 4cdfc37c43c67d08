"""instructor: pydantic objects by tool calls, by json_schema and by json_object, from the bundled model."""

import importlib.metadata

import instructor
import openai
import pydantic
from scenarios import *  # noqa: F403

NAME = f"instructor {importlib.metadata.version('instructor')}"


class Animal(pydantic.BaseModel, extra="forbid"):
    legs: bool
    tail: bool


def client(mode, url=model_url):
    return instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=mode)


def ask(mode, **extra):
    return client(mode).chat.completions.create(model="demo", messages=user("An animal, in json"), response_model=Animal,
                                                max_tokens=400, max_retries=0, **extra)


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    @scenario(NAME, {instructor.Mode.TOOLS: "tools", instructor.Mode.TOOLS_STRICT: "tools, strict",
                     instructor.Mode.JSON_SCHEMA: "format"}[mode])
    def _():
        for seed in range(4):
            assert isinstance(ask(mode, seed=seed), Animal)


@scenario(NAME, "stream")
def _():
    parts = list(client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model="demo", messages=user("An animal, in json"), response_model=Animal, max_tokens=400, max_retries=0))
    Animal.model_validate(parts[-1].model_dump())


@scenario(NAME, "error")
def _():
    expect_error(lambda: ask(instructor.Mode.TOOLS, temperature=9), Exception, "temperature")


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: isinstance(ask(instructor.Mode.JSON_SCHEMA), Animal), expected=True)
