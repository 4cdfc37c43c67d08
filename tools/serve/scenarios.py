"""What the scripts of all clients share: the questions to the scripted server and its answers, and how a scenario is
reported. Each client_*.py runs as `client_X.py SCRIPTED_URL MODEL_URL` in the environment of its client and prints a
JSON object per scenario: {"client", "scenario", "error"}; error is null where it passed, "n/a: ..." where the client
has no such thing."""

import concurrent.futures
import json
import sys
import time
import traceback
import urllib.request

CALL = ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get">\n<｜DSML｜parameter name="city" string="true">Oslo'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')
# The first line whose "match" is in the prompt answers (dsv4/server/engine_port.h).
SCRIPT = [
    {"match": "tool_result", "output": "It is sunny."},
    {"match": "weather, thinking", "output": "I look.</think>\n\n" + CALL},
    {"match": "weather", "output": "\n\n" + CALL},
    {"match": "ponder", "output": "Hm.</think>\n\nDone."},
    {"match": "forever", "output": "tick ", "repeat": 5000, "step_ms": 10},
    {"output": "Hello there."},
]
PLAIN = "Hello there."
AFTER_TOOL = "It is sunny."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI_TOOL = {"type": "function", "function": {"name": "get", "description": "Weather", "parameters": SCHEMA}}
ANTHROPIC_TOOL = {"name": "get", "description": "Weather", "input_schema": SCHEMA}
THINKING = {"thinking": {"type": "enabled"}}

scripted_url, model_url = (sys.argv + ["", ""])[1:3]


class NotApplicable(Exception):
    """The client has no such thing."""


def user(text):
    return [{"role": "user", "content": text}]


def scenario(client, name):
    """Runs the function at once and reports how it went."""
    def wrap(function):
        error = None
        try:
            function()
        except NotApplicable as reason:
            error = f"n/a: {reason}"
        except Exception as problem:  # whatever a client throws is a finding
            place = traceback.extract_tb(problem.__traceback__)[-1]
            error = f"{type(problem).__name__}: {str(problem)[:400]} ({place.name}:{place.lineno})"
        print(json.dumps({"client": client, "scenario": name, "error": error}), flush=True)
        return function
    return wrap


def in_parallel(ask, expected=PLAIN, number=20):
    with concurrent.futures.ThreadPoolExecutor(number) as pool:
        answers = list(pool.map(lambda _: ask(), range(number)))
    assert all(answer == expected for answer in answers), answers


def metric(name):
    text = urllib.request.urlopen(scripted_url + "/metrics").read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


def expect_idle():
    """After a client closed its stream, the engine must have nothing to do."""
    for _ in range(150):
        if metric("dsv4_requests_running") == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the request still runs after 3 s")


def expect_error(call, kind, text=""):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError("no error")
