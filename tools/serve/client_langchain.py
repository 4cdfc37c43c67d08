"""LangChain: langchain-openai (chat and Responses) and langchain-anthropic."""

import importlib.metadata

import langchain_openai
import openai
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from scenarios import *  # noqa: F403

NAME = f"langchain-openai {importlib.metadata.version('langchain-openai')}"


def chat(url=scripted_url, **extra):
    return langchain_openai.ChatOpenAI(model="demo", base_url=url + "/v1", api_key="none", max_retries=0, **extra)


def models():
    return chat(), chat(use_responses_api=True)


@scenario(NAME, "plain")
def _():
    for model in models():
        assert model.invoke("Hi").text == PLAIN, model.invoke("Hi")


@scenario(NAME, "stream")
def _():
    for model in models():
        assert "".join(part.text for part in model.stream("Hi")) == PLAIN


@scenario(NAME, "tools")
def _():
    for model in models():
        tools = model.bind_tools([OPENAI_TOOL])
        question = HumanMessage("weather")
        answer = tools.invoke([question])
        assert answer.tool_calls[0]["args"] == {"city": "Oslo"}, answer
        result = ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
        assert tools.invoke([question, answer, result]).text == AFTER_TOOL


@scenario(NAME, "thinking")
def _():
    # This client drops reasoning_content; the answer and the history must do without.
    tools = chat(extra_body=THINKING).bind_tools([OPENAI_TOOL])
    question = HumanMessage("weather, thinking")
    answer = tools.invoke([question])
    assert answer.tool_calls[0]["args"] == {"city": "Oslo"} and not answer.text, answer
    result = ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
    assert tools.invoke([question, answer, result]).tool_calls == []


@scenario(NAME, "error")
def _():
    expect_error(lambda: chat(temperature=9).invoke("Hi"), openai.BadRequestError, "temperature")


@scenario(NAME, "cancel")
def _():
    stream = chat().stream("forever")
    next(stream)
    stream.close()
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: chat().invoke("Hi").text)


class Animal(pydantic.BaseModel, extra="forbid"):
    """An animal."""
    legs: bool
    tail: bool


@scenario(NAME, "format")
def _():
    for method in ("json_schema", "function_calling"):
        found = chat(model_url, max_tokens=300, seed=3).with_structured_output(Animal, method=method).invoke("An animal")
        assert isinstance(found, Animal), (method, found)


@scenario("langchain-anthropic " + importlib.metadata.version("langchain-anthropic"), "plain")
def _():
    import langchain_anthropic
    model = langchain_anthropic.ChatAnthropic(model="demo", base_url=scripted_url, api_key="none", max_retries=0)
    assert model.invoke("Hi").text == PLAIN
    assert "".join(part.text for part in model.stream("Hi")) == PLAIN
    tools = model.bind_tools([ANTHROPIC_TOOL])
    question = HumanMessage("weather")
    answer = tools.invoke([question])
    assert answer.tool_calls[0]["args"] == {"city": "Oslo"}, answer
    result = ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])
    assert tools.invoke([question, answer, result]).text == AFTER_TOOL
