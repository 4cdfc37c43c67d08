"""Writes the inputs of `dsv4 eval` for the demo model: a held-out text and the recall template.

    python3 make_quality.py --model .. --text ../../../tests/golden/demo/heldout.txt

The text is DOCUMENTS documents of the corpus with seeds that training never used, each preceded by a BOS
token and cut at the end of its last whole line. needle.json, written into the model's folder, has
the five families of facts.py with lists of keys and values, and held-out stories as filler.
"""

import argparse
import json
import random
from pathlib import Path

import data
import lexicon as lex
import stories

DOCUMENTS, SIZE = 8, 4096
STORIES = 60
BOS_TEXT = "<｜begin▁of▁sentence｜>"


def text(tokenizer) -> str:
    documents = []
    for i in range(DOCUMENTS):
        ids = data.document(tokenizer, f"heldout-quality-{i}", SIZE)[0].tolist()
        body = tokenizer.decode(ids[1:], skip_special_tokens=False)
        documents.append(BOS_TEXT + body[:body.rindex("\n") + 1])
    return "".join(documents)


def family(subject: str, question: str, lead: str, keys: list[str], values: list[str]) -> dict:
    return {"fact": "Remember: " + lead.replace("*", subject) + " {value}.\n",
            "question": "Question: " + question.replace("*", subject) + "? Answer:",
            "answer": " {value}.\n", "keys": keys, "values": values}


def needle(rng: random.Random) -> dict:
    boxes = [f"{color} {box}" for color in lex.COLORS for box in lex.BOXES]
    pets = [f"{animal} of {name}" for animal in lex.ANIMALS for name in lex.NAMES]
    words = family("the secret word of {key}", "what is *", "* is", lex.NAMES, lex.VALUES)
    facts = [
        words, words,  # as often as in training
        family("the key of the {key}", "where is *", "* is", boxes,
               [f"under the {place}" for place in lex.PLACES]),
        family("the home of {key}", "where is *", "* is", lex.NAMES, lex.TOWNS),
        family("the {key}", "what is the name of *", "the name of * is",
               sorted(rng.sample(pets, 100)), lex.PETS),
        family("the number of {key}", "what is *", "* is", lex.NAMES,
               [str(n) for n in sorted(rng.sample(range(100, 1000), 100))]),
    ]
    return {"facts": facts, "filler": [stories.story(rng) for _ in range(STORIES)],
            "distractors": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    args = parser.parse_args()
    args.text.write_text(text(data.load_tokenizer(args.model)))
    template = needle(random.Random("heldout-needle"))
    (args.model / "needle.json").write_text(json.dumps(template, indent=1) + "\n")


if __name__ == "__main__":
    main()
