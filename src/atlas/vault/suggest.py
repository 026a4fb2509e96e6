"""The one place that guesses what a person meant to write."""

from __future__ import annotations

from collections.abc import Iterable

MAX_WORD = 64


def nearest(word: str, options: Iterable[str]) -> str:
    """The option most like `word`, or an empty string when none is close."""
    if len(word) > MAX_WORD:
        return ""
    import difflib  # costs more to import than everything else here, and only mistakes need it

    by_fold = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else ""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A hint that names the option most like `word`, or an empty string."""
    match = nearest(word, options)
    return f"did you mean {match}?" if match else ""
