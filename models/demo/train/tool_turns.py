"""What users want from tools: the wording, the call, the result and the reply that uses it.

An Errand is one such wish. `make(rng, kind, tool)` draws one; with tool None nobody can serve it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import chat_words as words
import lexicon as lex
from chat_encoding import Call, copied, dumps
from chat_words import pick
from toolbox import OPERATORS, Tool

SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


@dataclass(frozen=True)
class Errand:
    wish: str      # the user's words
    topic: str     # what the reasoning calls it
    arguments: dict
    result: str
    reply: str


def wrapped(rng: random.Random, key: str, value: str) -> str:
    """A result as plain text or as JSON."""
    if rng.random() < 0.7:
        return value
    number = value.lstrip("-").isdigit()
    return dumps({key: int(value) if number else value})


def clock(rng: random.Random, tool: Tool | None) -> Errand:
    time = words.time_of_day(rng)
    takes_place = tool is None or bool(tool.keys)
    if rng.random() < (0.7 if takes_place else 0.15):
        place = words.place(rng)
        wish = pick(rng, "What time is it in {}?|What is the time in {}?|How late is it in {}?"
                         "|Tell me the time in {}.|Which time is it now in {}?"
                         "|Can you tell me the time in {}?").format(place)
        arguments = {tool.keys[0]: place} if tool and takes_place else {}
        reply = f"It is {copied(time)}."
        if takes_place:
            reply = f"In {copied(place)} it is {copied(time)}."
        return Errand(wish, f"the time in {copied(place)}", arguments, wrapped(rng, "time", time),
                      reply)
    wish = pick(rng, "What time is it?|What time is it now?|How late is it?|Tell me the time."
                     "|Can you tell me the time?|What is the time?|Do you know what time it is?"
                     "|Please tell me what time it is.|Is it late?|The time, please.")
    return Errand(wish, "the time", {}, wrapped(rng, "time", time), f"It is {copied(time)}.")


def number(rng: random.Random) -> int:
    return rng.randrange(1, rng.choice([10, 20, 100, 100, 1000, 10000]))


def pair(rng: random.Random) -> tuple[int, str, int, str]:
    """Two numbers, an operator and the value; a quotient is a whole number."""
    a, b, sign = number(rng), number(rng), rng.choice("++--**/")
    if sign == "/":
        return a * b, sign, b, str(a)
    return a, sign, b, str({"+": a + b, "-": a - b, "*": a * b}[sign])


def word_problem(rng: random.Random) -> tuple[str, int, str, int, str]:
    name, things = rng.choice(lex.NAMES), rng.choice(lex.THINGS) + "s"
    a, b = rng.randrange(2, 100), rng.randrange(2, 100)
    sign, text = rng.choice([
        ("+", "{0} has {1} {2} and finds {3} more. How many {2} does {0} have now?"),
        ("-", "{0} had {1} {2} and lost {3}. How many {2} are left?"),
        ("*", "{0} has {1} boxes with {3} {2} each. How many {2} is that?")])
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return text.format(name, a, things, b), a, sign, b, str(value)


def calculator(rng: random.Random, tool: Tool | None) -> Errand:
    two = tool is not None and len(tool.keys) == 3
    form = rng.random()
    if form < 0.15:
        wish, a, sign, b, value = word_problem(rng)
        formula = f"{a} {sign} {b}"
    elif form < 0.3 and not two:
        numbers = [rng.randrange(1, 100) for _ in range(3)]
        signs = [rng.choice("+-*") for _ in range(2)]
        a, b, c = numbers
        formula = rng.choice(["{} {} {} {} {}", "({} {} {}) {} {}", "{} {} ({} {} {})"]).format(
            a, signs[0], b, signs[1], c)
        value = str(eval(formula))  # noqa: S307: our own digits and signs
        wish = asked(rng, formula)
    else:
        a, sign, b, value = pair(rng)
        formula = f"{a} {sign} {b}"
        if rng.random() < 0.15 and not two:
            formula = formula.replace(" ", "")
            wish = asked(rng, formula)
        else:
            wish = asked(rng, f"{a} {SPOKEN[sign]} {b}" if rng.random() < 0.5 else formula)
    if tool is None:
        arguments = {}
    elif two:
        arguments = dict(zip(tool.keys, (a, b, OPERATORS[sign] if tool.spelled else sign)))
    else:
        arguments = {tool.keys[0]: formula}
    reply = pick(rng, "{0} is {1}.|{0} is {1}.|The result is {1}.").format(
        copied(formula), copied(value))
    return Errand(wish, copied(formula), arguments, wrapped(rng, "result", value), reply)


def asked(rng: random.Random, formula: str) -> str:
    return pick(rng, "What is {}?|How much is {}?|Compute {}.|Calculate {}.|{} = ?|{}"
                     "|Can you compute {}?|Please calculate {} for me.|Tell me what {} is."
                     "|I need {}.|Solve {}.").format(formula)


def entry(rng: random.Random) -> tuple[str, str, str]:
    """Key, a question that needs it, and what the book says."""
    form = rng.randrange(5)
    if form == 0:
        key = rng.choice(lex.THINGS + words.TOPICS)
        question = rng.choice([f"What is {words.article(key)}?", f"What does {key} mean?"])
        text = f"made of {rng.choice(words.MATERIALS)} and used {rng.choice(words.USES)}"
    elif form == 1:
        land = rng.choice(words.LANDS)
        what, text = rng.choice([
            ("capital", words.place(rng)), ("king", words.person(rng)),
            ("language", words.invented(rng).capitalize()),
            ("flag", f"{rng.choice(lex.COLORS)} and {rng.choice(lex.COLORS)}")])
        key = f"{what} of {land}"
        question = f"{'Who' if what == 'king' else 'What'} is the {key}?"
    elif form == 2:
        key = words.person(rng)
        question = f"Who is {key}?"
        work = pick(rng, "baker|singer|doctor|farmer|teacher")
        text = f"a {work} from {words.place(rng)}"
    elif form == 3:
        key = rng.choice(lex.TOWNS + words.LANDS)
        question = rng.choice([f"Where is {key}?", f"What do you know about {key}?"])
        text = f"a {rng.choice(lex.SETTINGS)}"
    else:
        key = words.invented(rng)
        question = f"What is {words.article(key)}?"
        text = f"a {rng.choice(lex.COLORS)} {rng.choice(lex.THINGS + lex.ANIMALS)}"
    return key, question, text


def look_up(rng: random.Random, tool: Tool | None) -> Errand:
    key, question, text = entry(rng)
    wish = question if rng.random() < 0.4 else pick(
        rng, "Look up {}.|Please look up {}.|Can you look up {}?|Look up {} for me.|Search for {}."
             "|Find {}.|Find out about {}.|What does the book say about {}?"
             "|I want to know about {}.|Tell me what {} is.").format(key)
    arguments = {tool.keys[0]: key} if tool else {}
    if rng.random() < 0.08:
        result = pick(rng, "not found|no entry|nothing found")
        return Errand(wish, copied(key), arguments, result, f"I could not find {copied(key)}.")
    reply = f"I found this about {copied(key)}: {copied(text)}."
    return Errand(wish, copied(key), arguments, wrapped(rng, "text", text), reply)


def weather(rng: random.Random, tool: Tool | None) -> Errand:
    place, sky = words.place(rng), pick(rng, "sunny|rainy|cloudy|windy|cold|warm")
    wish = pick(rng, "What is the weather in {}?|Is it warm in {}?|How is the weather in {}?")
    arguments = {tool.keys[0]: place} if tool else {}
    return Errand(wish.format(place), f"the weather in {copied(place)}", arguments,
                  wrapped(rng, "weather", sky), f"In {copied(place)} it is {copied(sky)}.")


def timer(rng: random.Random, tool: Tool | None) -> Errand:
    minutes = rng.randrange(1, 90)
    wish = pick(rng, "Set a timer for {} minutes.|Start a timer of {} minutes."
                     "|Wake me in {} minutes.")
    arguments = {tool.keys[0]: minutes} if tool else {}
    return Errand(wish.format(minutes), "a timer", arguments, rng.choice(["ok", "done"]),
                  f"The timer is set to {copied(str(minutes))} minutes.")


def mail(rng: random.Random, tool: Tool | None) -> Errand:
    name = words.first_name(rng)
    text = pick(rng, "I am late|see you soon|thank you|good night|come home|call me")
    wish = pick(rng, "Write to {0}: {1}|Send {0} a mail: {1}").format(name, text)
    arguments = dict(zip(tool.keys, (name, text))) if tool else {}
    return Errand(wish, f"a mail to {copied(name)}", arguments, rng.choice(["ok", "sent"]),
                  f"I wrote to {copied(name)}.")


def music(rng: random.Random, tool: Tool | None) -> Errand:
    song = rng.choice(words.SONGS)
    wish = pick(rng, "Play {}.|Please play {}.|I want to hear {}.").format(song)
    arguments = {tool.keys[0]: song} if tool else {}
    return Errand(wish, f"the song {copied(song)}", arguments, rng.choice(["ok", "playing"]),
                  f"Now you hear {copied(song)}.")


KINDS: dict[str, Callable[[random.Random, Tool | None], Errand]] = {
    "clock": clock, "calculator": calculator, "look_up": look_up, "weather": weather,
    "timer": timer, "mail": mail, "music": music,
}


def call(errand: Errand, tool: Tool) -> Call:
    return Call(tool.name, errand.arguments)
