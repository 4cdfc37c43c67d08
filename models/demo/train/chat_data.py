"""Training documents of conversations, mixed with the documents of data.py."""

import random
from itertools import accumulate

import numpy as np
from tokenizers import Tokenizer

import chats
import data
from chat_encoding import Pieces, pieces

TOOLS_SHARE = 0.65  # of conversations


def encode(tokenizer: Tokenizer, parts: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """ids and loss weights; a token has the weight of the piece that holds its last character."""
    encoding = tokenizer.encode("".join(text for text, _ in parts))
    ends = np.array(list(accumulate(len(text) for text, _ in parts)))
    last = np.array([max(end - 1, 0) for _, end in encoding.offsets])
    weights = np.array([weight for _, weight in parts], np.uint8)
    return np.array(encoding.ids, np.int16), weights[np.searchsorted(ends, last, side="right")]


def document(tokenizer: Tokenizer, name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and weights [size]: short conversations, each after a BOS, or one long one."""
    rng = random.Random(name)
    ids, weights, length = [], [], 0
    long = rng.random() < 0.4
    while length < size:
        exchanges = 24 if long else rng.randint(1, 6)
        talk = chats.conversation(rng, exchanges, rng.random() < TOOLS_SHARE)
        i, w = encode(tokenizer, pieces(talk))
        ids.append(i)
        weights.append(w)
        length += len(i)
    return np.concatenate(ids)[:size], np.concatenate(weights)[:size]


def batch(tokenizer: Tokenizer, name: str, count: int, size: int,
          chats_share: float) -> tuple[np.ndarray, np.ndarray]:
    """ids and weights [count,size]; with chats_share 0 the same as data.batch."""
    pairs = []
    for i in range(count):
        one = f"{name}-{i}"
        is_chat = random.Random(f"{one}-kind").random() < chats_share
        pairs.append((document if is_chat else data.document)(tokenizer, one, size))
    return np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])
