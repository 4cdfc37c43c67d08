"""Trains the demo tokenizer: DeepSeek-V4's format and pre-tokenizer, our own vocabulary."""

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import facts
import stories

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
HEAD = [BOS, EOS, PAD]
TAIL = [USER, ASSISTANT, "<think>", "</think>", "｜DSML｜"]
MARKUP = {"<think>", "</think>", "｜DSML｜"}  # added but not special, as in the official file

ASCII_PUNCT = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    ASCII_PUNCT + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def corpus(seed: int, documents: int):
    """Stories, facts and questions in the proportion of the training text."""
    rng = random.Random(seed)
    for _ in range(documents):
        yield stories.story(rng)
        for fact in facts.distinct(rng, 6):
            yield fact.line
            yield fact.ask + fact.answer + "\n"
            yield fact.chat_ask
            yield f"Tell me a story about {rng.choice(facts.lex.NAMES)}."


def train(vocab_size: int, seed: int, documents: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in SPLITS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAIL), special_tokens=HEAD, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(seed, documents), trainer)
    # The marker tokens come last, after the merges, as in the official vocabulary.
    for text in TAIL:
        token = AddedToken(text, normalized=False, special=text not in MARKUP)
        (tokenizer.add_tokens if text in MARKUP else tokenizer.add_special_tokens)([token])
    assert tokenizer.get_vocab_size() == vocab_size
    assert [tokenizer.token_to_id(t) for t in HEAD] == [0, 1, 2]
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the tokenizer files")
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--documents", type=int, default=6000)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    train(args.vocab_size, args.seed, args.documents).save(str(args.out / "tokenizer.json"))
    config = {
        "add_bos_token": False, "add_eos_token": False, "bos_token": BOS, "eos_token": EOS,
        "pad_token": EOS, "unk_token": None, "clean_up_tokenization_spaces": False,
        "model_max_length": 65536, "tokenizer_class": "PreTrainedTokenizerFast"}
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0,
                  "top_p": 1.0}
    for name, content in (("tokenizer_config", config), ("generation_config", generation)):
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (args.out / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
