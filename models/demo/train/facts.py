"""Recall tasks: facts that are stated once and requested later.

A fact is a line "Remember: ...", a question line that ends in its answer, and the same question
as a chat turn. Keys and values are drawn independently, so only the document contains the
answer.
"""

import random
from dataclasses import dataclass

import lexicon as lex


@dataclass(frozen=True)
class Fact:
    key: str       # unique inside one document
    line: str      # states the fact
    ask: str       # "Question: ... Answer:"
    answer: str    # " lantern."
    chat_ask: str  # the same question as a user turn
    chat_lead: str  # how the assistant's reply begins, up to the answer


def make(rng: random.Random) -> Fact:
    """Draws one fact from five families."""
    name = rng.choice(lex.NAMES)
    family = rng.choice(("word", "word", "key", "town", "pet", "number"))
    if family == "word":
        subject, answer = f"the secret word of {name}", rng.choice(lex.VALUES)
        question, lead = f"what is {subject}", f"the secret word of {name} is"
    elif family == "key":
        box = f"{rng.choice(lex.COLORS)} {rng.choice(lex.BOXES)}"
        subject, answer = f"the key of the {box}", f"under the {rng.choice(lex.PLACES)}"
        question, lead = f"where is {subject}", f"{subject} is"
    elif family == "town":
        subject, answer = f"the home of {name}", rng.choice(lex.TOWNS)
        question, lead = f"where is {subject}", f"{subject} is"
    elif family == "pet":
        subject = f"the {rng.choice(lex.ANIMALS)} of {name}"
        answer = rng.choice(lex.PETS)
        question, lead = f"what is the name of {subject}", f"the name of {subject} is"
    else:
        subject, answer = f"the number of {name}", str(rng.randrange(100, 1000))
        question, lead = f"what is {subject}", f"{subject} is"
    return Fact(
        key=subject,
        line=f"Remember: {lead} {answer}.\n",
        ask=f"Question: {question}? Answer:",
        answer=f" {answer}.",
        chat_ask=f"{question[0].upper()}{question[1:]}?",
        chat_lead=f"{lead[0].upper()}{lead[1:]}",
    )


def distinct(rng: random.Random, count: int) -> list[Fact]:
    """`count` facts with different keys."""
    facts: dict[str, Fact] = {}
    while len(facts) < count:
        fact = make(rng)
        facts.setdefault(fact.key, fact)
    return list(facts.values())
