"""Tools as clients declare them: one kind has many names, descriptions and parameter names.

The three toy tools are the clock, the calculator and the look-up; the other kinds stand beside them
in a request, or are missing when the user wants them. A name in UNSEEN is never drawn in training.
"""

import random
from dataclasses import dataclass

import chat_words as words

NAMES = {  # first words and second words; a missing one is "-"
    "clock": ("get read tell show current - my", "time clock now time_now time_of_day"),
    "calculator": ("- run do simple my", "calculator calculate calc compute math arithmetic solve"),
    "look_up": ("- search find get my look_up",
                "lookup word entry dictionary facts fact book definition"),
    "weather": ("get - show", "weather forecast"),
    "timer": ("set start -", "timer alarm"),
    "mail": ("send write -", "mail message"),
    "music": ("play - start", "song music"),
}
UNSEEN = {"clock": "wall_clock hour", "calculator": "evaluate reckon",
          "look_up": "encyclopedia fetch_article"}
TOYS = tuple(UNSEEN)
DESCRIPTIONS = {  # a word or phrase of each column
    "clock": ("Tells|Returns|Get|Gets|Reads|Shows|Gives",
              "the time|the current time|the time of day|the time now|what time it is"),
    "calculator": ("Calculates|Computes|Compute|Evaluates|Evaluate|Solves",
                   "an expression|an arithmetic expression|a formula|with numbers|simple arithmetic"
                   "|sums and products|the value of an expression"),
    "look_up": ("Looks up|Look up|Finds|Find|Searches for|Returns",
                "a word|an entry|a fact|facts|what is known about something|a definition",
                "|in the dictionary|in a book of facts|by key|in a small encyclopedia"),
    "weather": ("Tells|Get|Returns", "the weather|the weather of a place"),
    "timer": ("Sets|Starts|Set", "a timer|a timer of some minutes"),
    "mail": ("Sends|Writes|Send", "a mail|a message to a person"),
    "music": ("Plays|Play", "a song|music"),
}
PLACE = "city town place location"
PARAMETERS = {  # per kind: the alternatives of every parameter and its type
    "clock": [(PLACE, "string")],
    "calculator": [("expression formula input term problem", "string")],
    "look_up": [("key word query name term topic entry", "string")],
    "weather": [(PLACE, "string")],
    "timer": [("minutes time duration", "integer")],
    "mail": [("to name person", "string"), ("text message body", "string")],
    "music": [("title song name", "string")],
}
PAIRS = [("a", "b"), ("x", "y"), ("left", "right"), ("first", "second")]
OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}


@dataclass(frozen=True)
class Tool:
    kind: str
    schema: dict               # {name, description, parameters}
    keys: tuple[str, ...]      # its parameters, in the order of PARAMETERS
    spelled: bool = False      # of a calculator with two numbers: operations as words

    @property
    def name(self) -> str:
        return self.schema["name"]


def tool_name(rng: random.Random, kind: str, unseen: bool) -> str:
    if unseen:
        return rng.choice(UNSEEN[kind].split())
    if rng.random() < 0.1:  # only the description says what it does
        return rng.choice([words.invented(rng), f"tool_{rng.randrange(100)}",
                           f"fn{rng.randrange(10)}"])
    first, second = (rng.choice(column.split()) for column in NAMES[kind])
    name = second if first == "-" else f"{first}_{second}"
    style = rng.random()
    if style < 0.15:
        head, *rest = name.split("_")
        return head + "".join(word.capitalize() for word in rest)
    return name.replace("_", "-") if style < 0.2 else name


def description(rng: random.Random, kind: str) -> str:
    text = " ".join(words.pick(rng, column) for column in DESCRIPTIONS[kind]).strip()
    return text + rng.choice([".", ".", ""])


def properties(rng: random.Random, kind: str) -> dict[str, dict]:
    if kind == "clock" and rng.random() < 0.5:
        return {}
    out = {}
    for names, type_ in PARAMETERS[kind]:
        out[rng.choice(names.split())] = {"type": type_}
    return out


def declare(rng: random.Random, kind: str, unseen: bool = False) -> Tool:
    two_numbers = kind == "calculator" and rng.random() < 0.2
    spelled = rng.random() < 0.5
    if two_numbers:
        a, b = rng.choice(PAIRS)
        signs = list(OPERATORS.values() if spelled else OPERATORS)
        fields = {a: {"type": "number"}, b: {"type": "number"},
                  rng.choice(["operation", "operator", "op"]): {"type": "string", "enum": signs}}
    else:
        fields = properties(rng, kind)
    keys = tuple(fields)
    if rng.random() < 0.2:
        for key, field in fields.items():
            field["description"] = rng.choice([f"the {key}", f"The {key}.", "what to use"])
    parameters: dict = {"type": "object", "properties": fields}
    optional = kind == "clock"  # a clock's place may be left out
    if rng.random() < 0.8 and not (optional and rng.random() < 0.5):
        parameters["required"] = [] if optional else list(keys)
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    schema = {"name": tool_name(rng, kind, unseen),
              "description": description(rng, kind), "parameters": parameters}
    return Tool(kind, schema, keys, two_numbers and spelled)


def draw(rng: random.Random, unseen: bool = False) -> dict[str, Tool]:
    """The tools of one request by kind, in a random order, with different names."""
    count = rng.choice([1, 2, 3, 3, 3, 3])
    kinds = rng.sample(TOYS, count)
    kinds += rng.sample([k for k in NAMES if k not in TOYS], rng.choice([0, 0, 0, 1, 2]))
    rng.shuffle(kinds)
    tools: dict[str, Tool] = {}
    for kind in kinds:
        tool = declare(rng, kind, unseen and kind in TOYS)
        while tool.name in (t.name for t in tools.values()):
            tool = declare(rng, kind, unseen and kind in TOYS)
        tools[kind] = tool
    return tools
