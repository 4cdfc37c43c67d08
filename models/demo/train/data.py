"""Documents of the demo corpus as token ids: plain texts, chats and recall probes."""

import math
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import facts
import lexicon as lex
import stories

BOS, EOS = 0, 1
STORY_WEIGHT, FACT_WEIGHT, ANSWER_WEIGHT = 4, 1, 32  # loss weights, in quarters


class Writer:
    """Collects token ids and their loss weights."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.ids, self.weights = [BOS], [STORY_WEIGHT]

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, text: str, weight: int = STORY_WEIGHT) -> None:
        ids = self.tokenizer.encode(text).ids
        self.ids += ids
        self.weights += [weight] * len(ids)

    def answer(self, text: str) -> None:
        """Adds the value of a fact with its full stop, at a high loss weight."""
        self.add(text, ANSWER_WEIGHT)

    def cut(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        return (np.array(self.ids[:size], np.int16), np.array(self.weights[:size], np.uint8))


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def schedule(rng: random.Random, size: int) -> list[tuple[float, bool, facts.Fact]]:
    """(position, is a question, fact): each fact is stated once and requested once, later."""
    most = max(3, min(80, size // 40))
    count = int(math.exp(rng.uniform(math.log(2), math.log(most + 1))))
    early = rng.random() < 0.4
    events = []
    for fact in facts.distinct(rng, count):
        start = 0.0 if early else rng.uniform(0, 0.8 * size)
        room = size - start - 20
        if rng.random() < 0.5:
            distance = rng.uniform(15, room)
        else:
            distance = math.exp(rng.uniform(math.log(15), math.log(room)))
        events += [(start, False, fact), (start + distance, True, fact)]
    return sorted(events, key=lambda e: e[0])


def plain(rng: random.Random, writer: Writer, size: int) -> None:
    """Lines: stories, facts, questions."""
    for position, question, fact in [*schedule(rng, size), (size, False, None)]:
        while len(writer) + 50 < position:
            writer.add(stories.story(rng))
        if fact and question:
            writer.add(fact.ask)
            writer.answer(fact.answer + "\n")
        elif fact:
            writer.add(fact.line, FACT_WEIGHT)


def story_request(rng: random.Random, writer: Writer) -> None:
    hero, thing = rng.choice(lex.NAMES), rng.choice(lex.THINGS)
    about = hero if rng.random() < 0.5 else f"{hero} and a {thing}"
    told = stories.story(rng, hero, thing).rstrip("\n")
    writer.add(f"<｜User｜>Tell me a story about {about}.<｜Assistant｜></think>{told}"
               "<｜end▁of▁sentence｜>")


def chat(rng: random.Random, writer: Writer, size: int) -> None:
    """Chat turns: the user states facts and texts, and requests stories and facts."""
    turn: list[str] = []  # lines of the user turn that is open

    def close() -> None:
        if turn:
            writer.add("<｜User｜>" + "".join(turn).rstrip("\n"), FACT_WEIGHT)
            writer.add("<｜Assistant｜></think>I will remember it.<｜end▁of▁sentence｜>")
            turn.clear()

    pending = 0  # approximate number of tokens in the open turn
    for position, question, fact in [*schedule(rng, size), (size, False, None)]:
        while len(writer) + pending + 50 < position:
            if turn and rng.random() < 0.6:
                turn.append(stories.story(rng))
                pending += 100
            else:
                close()
                pending = 0
                story_request(rng, writer)
        if fact and question:
            writer.add("<｜User｜>" + "".join(turn), FACT_WEIGHT)
            turn.clear()
            pending = 0
            writer.add(f"{fact.chat_ask}<｜Assistant｜></think>{fact.chat_lead}")
            writer.answer(fact.answer + "<｜end▁of▁sentence｜>")
        elif fact:
            turn.append(fact.line)
            pending += 12
    close()


def document(tokenizer: Tokenizer, name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and weights [size]; the name is the seed ("train-..." or "heldout-...")."""
    rng = random.Random(name)
    writer = Writer(tokenizer)
    while len(writer) < size:  # a pass may be short by part of a story
        (chat if rng.random() < 0.3 else plain)(rng, writer, size)
    return writer.cut(size)


def batch(tokenizer: Tokenizer, name: str, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [document(tokenizer, f"{name}-{i}", size) for i in range(count)]
    return np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])


def probe(tokenizer: Tokenizer, name: str, distance: int) -> tuple[list[int], list[int]]:
    """Prompt and answer ids; `distance` tokens lie between the stated value and the answer.

    Four other facts are placed before or between as distractors, at most one per 100 tokens.
    """
    rng = random.Random(name)
    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    target, *others = facts.distinct(rng, 5)
    ask, answer = encode(target.ask), encode(target.answer + "\n")
    between = distance - len(ask) - 1  # -1: the end of the fact's own line
    lines = [encode(o.line) for o in others[:min(4, between // 100)]]
    used = sum(map(len, lines))
    while used < between:
        lines.append(encode(stories.story(rng)))
        used += len(lines[-1])
    first = lines.pop()[used - between:]  # the tail of a story, so that the length is exact
    rng.shuffle(lines)
    middle = first + [i for line in lines for i in line]
    before = encode(stories.story(rng)) if rng.random() < 0.5 else []
    return [BOS, *before, *encode(target.line), *middle, *ask], answer
