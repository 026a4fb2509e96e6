"""The words that a bench of context is made of: drawn anew for each seed, so that nothing can be tuned to them."""

from __future__ import annotations

from importlib import resources
from random import Random
from typing import Final

_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"


def load_words() -> dict[str, list[str]]:
    """The lists of `context_words.txt` by name; no word is in two of them."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in (resources.files("atlas.testing") / "context_words.txt").read_text(encoding="utf-8").splitlines():
        if line.endswith(":"):
            words = found[line[:-1]] = []
        else:
            words += line.split()
    return found


def new_value(random: Random) -> str:
    """A value that occurs nowhere else: what a question leaves out and an answer must have."""
    letters = "".join(random.choices(_LETTERS, k=3))
    return f"{letters}-{random.randrange(10_000, 99_999)}"


def prose(random: Random, words: list[str], size: int) -> str:
    """About `size` bytes of sentences that say nothing."""
    sentences: list[str] = []
    length = 0
    while length < size:
        chosen = random.choices(words, k=random.randint(6, 14))
        sentence = f"{chosen[0].capitalize()} {' '.join(chosen[1:])}."
        sentences.append(sentence)
        length += len(sentence) + 1
    return " ".join(sentences)
