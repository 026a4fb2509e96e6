"""Tokens without a tokenizer: bytes of the neutral request, and what providers' own counts say a token is worth.

Everything in a request is measured in bytes of its JSON, which is exact, cheap and the same everywhere. How many of
them make a token differs by model and by text, so it is learnt from the usage that providers report: within a turn the
rate only falls, at once, when a request turned out heavier than thought; between turns it follows what was seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from atlas.kernel.contract import Context, Model
from atlas.kernel.model import Asked, Usage

DEFAULT_RATE: Final = 3.0
LOWEST_RATE: Final = 1.0
HIGHEST_RATE: Final = 5.0
MAX_OUTPUT: Final = Model().max_output_tokens
MODELS_KEPT: Final = 4
_STEP: Final = 0.1
_MARGIN: Final = 0.97
_LIGHTER: Final = 0.7
_LEAST_TOKENS: Final = 100
_LONGEST_ESCAPE: Final = len("\\u0000")
_ENCODER: Final = msgspec.json.Encoder()


class Limits(msgspec.Struct, frozen=True):
    """How many tokens each part of a request may have; `total` holds for the whole of it, `output` for its reply.

    `recall` is the largest answer of one recall, `exchanges` how many of the last exchanges are kept word for word.
    """

    total: int = 16_000
    window: int = 7_000
    result: int = 1_200
    recall: int = 1_000
    user: int = 2_500
    session: int = 3_000
    tail: int = 1_500
    output: int = MAX_OUTPUT
    exchanges: int = 2

    def at(self, rate: float) -> Limits:
        """The same limits in bytes."""
        return Limits(
            total=int(self.total * rate),
            window=int(self.window * rate),
            result=int(self.result * rate),
            recall=int(self.recall * rate),
            user=int(self.user * rate),
            session=int(self.session * rate),
            tail=int(self.tail * rate),
            output=self.output,
            exchanges=self.exchanges,
        )


def limits_of(context: Context, window: int = 0, output: int = MAX_OUTPUT) -> Limits:
    """The limits that a contract asks for: its own words, and all others in the usual proportions.

    A model's `window`, where it is known, holds the request and its reply; it may narrow them and never widens them.
    """
    usual = Limits()
    total = context.max_tokens or usual.total
    if window:
        output = min(output, window // 2)
        total = min(total, window - output)
    share = total / usual.total
    result = int(usual.result * share)
    wanted = context.recall_tokens or int(usual.recall * share)
    return Limits(
        total=total,
        window=int(usual.window * share),
        # A recalled page is a tool's result too; were it shortened once more, its own words would be wrong.
        result=max(result, wanted + wanted // 8),
        recall=wanted,
        user=int(usual.user * share),
        session=int(usual.session * share),
        tail=int(usual.tail * share),
        output=output,
        exchanges=usual.exchanges if context.verbatim_exchanges is None else context.verbatim_exchanges,
    )


class Heard(Asked, frozen=True):
    """An answer as it is recorded: with the bytes of the request that it answers, which no later reader could know."""

    request_bytes: int = 0

    @property
    def sample(self) -> Sample:
        """What it teaches about tokens."""
        return Sample(self.model, self.request_bytes, self.reply.usage)


class Sample(msgspec.Struct, frozen=True):
    """One request that was answered: how large it was, and what the provider counted.

    A request with pictures has size 0: what they weigh is not in its bytes, so it teaches nothing.
    """

    model: str
    size: int
    usage: Usage

    @property
    def rate(self) -> float | None:
        """Bytes per token, a little below what was seen; None when nobody counted or there was too little to tell."""
        if self.usage.is_estimated or not self.size or self.usage.tokens_in < _LEAST_TOKENS:
            return None
        seen = self.size / self.usage.tokens_in * _MARGIN
        steps = int(seen / _STEP)
        return min(max(round(steps * _STEP, 1), LOWEST_RATE), HIGHEST_RATE)


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes per token of the models that answered last, newest last."""

    models: tuple[tuple[str, float], ...] = ()

    @property
    def rate(self) -> float:
        """Bytes per token, whichever of them answers next."""
        return min((rate for _, rate in self.models), default=DEFAULT_RATE)


def lowered(rate: float, sample: Sample) -> float:
    """The rate for the rest of a turn: lower when this request had more tokens than thought, never higher."""
    seen = sample.rate
    return rate if seen is None else min(rate, seen)


def lightened(rate: float) -> float:
    """The rate after a model said that a request is longer than it can read: it has more tokens than was thought."""
    return max(LOWEST_RATE, round(int(rate * _LIGHTER / _STEP) * _STEP, 1))


def learnt(before: Calibration, samples: Iterable[Sample]) -> Calibration:
    """The calibration after a turn: for each model that answered, the fewest bytes per token that were seen."""
    lowest: dict[str, float] = {}
    for sample in samples:
        rate = sample.rate
        if rate is not None:
            lowest[sample.model] = min(rate, lowest.get(sample.model, HIGHEST_RATE))
    models = dict(before.models)
    for model, seen in lowest.items():
        known = models.pop(model, None)
        # A small rise is noise, and following it would change every request for nothing.
        is_steady = known is not None and known <= seen < known + 3 * _STEP
        models[model] = known if known is not None and is_steady else seen
    return Calibration(tuple(models.items())[-MODELS_KEPT:])


def count(size: int, rate: float) -> int:
    """Tokens of so many bytes, from above."""
    return int(size / rate) + 1


def size_of(value: object) -> int:
    """The bytes of a value in a request."""
    return len(_ENCODER.encode(value))


def text_size(text: str) -> int:
    """The bytes of a text inside a request, its escapes counted, its quotes not."""
    return len(_ENCODER.encode(text)) - 2


def is_within(text: str, limit: int) -> bool:
    """Whether a text has at most `limit` bytes in a request; short ones need no measuring."""
    return len(text) * _LONGEST_ESCAPE <= limit or text_size(text) <= limit
