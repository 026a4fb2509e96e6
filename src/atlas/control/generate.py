"""Structured generation for agents' code: one question, an object that fits its schema.

JSON that was cut off is continued and JSON that does not fit is repaired, at most twice together. A text that was cut
off is an error: it is asked for once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from atlas.control.answer import MAX_REPAIRS, Complain, read
from atlas.control.service import Asker
from atlas.control.world import Effected
from atlas.kernel.code import Need
from atlas.kernel.errors import AtlasError, RunFailed
from atlas.kernel.hold import Hold
from atlas.kernel.model import Delta, Message, Reply, Request, Tab, Text
from atlas.kernel.turn import CUT_OFF

_BYTES_PER_TOKEN: Final = 3
_WORDS: Final = 200
_REPAIR: Final = "That does not fit: {}. Answer again with nothing but the JSON."
_RULE: Final = "Answer with one JSON value that fits this schema and with nothing else:\n"


class Wanted(msgspec.Struct, frozen=True):
    """What an agent's code asks a model for; the arguments of the effect."""

    model: str
    prompt: str
    output_schema: dict[str, Any] | None = None
    system: str = ""
    max_output_tokens: int = 2_048


class Generator:
    """Asks models on behalf of agents' code."""

    def __init__(self, asker: Asker, complain: Complain) -> None:
        self._asker = asker
        self._complain = complain

    async def generate(self, args: bytes, hold: Hold | None, tab: Tab) -> Effected:
        """The answer as JSON: an object that fits the schema, or the text when there is none.

        A hold says which model was granted and how long each of its answers may be.
        """
        wanted = msgspec.json.decode(args, type=Wanted)
        if hold is not None and hold.model:
            limit = hold.max_output_tokens // hold.asks
            wanted = msgspec.structs.replace(wanted, model=hold.model, max_output_tokens=limit)
        request = _request(wanted)
        complaint: str | None = None
        said = label = ""
        for _ in range(_asks(wanted)):
            try:
                asked = await self._asker.ask(wanted.model, request, _unheard, tab)
            except AtlasError as error:
                whole = self._whole(said, wanted) if error.reason == "model_empty" else None
                if whole is None:
                    raise
                return Effected(whole, label)
            label = asked.label
            text = _text(asked.reply)
            said += text
            if asked.reply.stop == "length":
                complaint, request = None, _told(request, text, CUT_OFF)
                continue
            if wanted.output_schema is None:
                return Effected(msgspec.json.encode(text), label)
            value, complaint = read(said, wanted.output_schema, self._complain)
            if complaint is None:
                return Effected(msgspec.json.encode(value), label)
            request, said = _told(request, text, _REPAIR.format(complaint)), ""
        if complaint is None:
            hint = "Ask for less at a time, or for JSON by a schema: such an answer is continued."
            raise RunFailed("the answer was cut off before it came to an end", hint=hint, code="answer_endless")
        raise RunFailed(f"the model's answer breaks its schema: {complaint}", code="output_invalid")

    def _whole(self, said: str, wanted: Wanted) -> bytes | None:
        """An answer that was cut off at its very end, as JSON: a model that is told to go on has nothing to add."""
        if not said or wanted.output_schema is None:
            return None
        value, complaint = read(said, wanted.output_schema, self._complain)
        return msgspec.json.encode(value) if complaint is None else None


def need_of(args: bytes) -> Need:
    """What a question of an agent's code may use at most, repairs included; rather too much than too little."""
    wanted = msgspec.json.decode(args, type=Wanted)
    raw = msgspec.json.encode(_request(wanted))
    asks = _asks(wanted)
    # Each further try reads the answers before it, and some words more.
    read = asks * (-(-len(raw) // _BYTES_PER_TOKEN)) + (asks - 1) * asks // 2 * (wanted.max_output_tokens + _WORDS)
    return Need(wanted.model, read, asks * wanted.max_output_tokens, asks=asks)


def _asks(wanted: Wanted) -> int:
    return 1 if wanted.output_schema is None else MAX_REPAIRS + 1


def _text(reply: Reply) -> str:
    """What the model says; RunFailed when it declines."""
    text = "".join(part.text for part in reply.parts if isinstance(part, Text))
    if reply.stop in ("refusal", "filter"):
        words = text.strip() or "the model gave no reason"
        raise RunFailed(f"the model declined: {words[:500]}", code=f"model_{reply.stop}")
    return text


def _request(wanted: Wanted) -> Request:
    schema = None if wanted.output_schema is None else msgspec.Raw(msgspec.json.encode(wanted.output_schema))
    rule = (_RULE + bytes(schema).decode(),) if schema is not None else ()
    return Request(
        model=wanted.model,
        system=(*((wanted.system,) if wanted.system else ()), *rule),
        messages=(Message("user", (Text(wanted.prompt),)),),
        max_output_tokens=wanted.max_output_tokens,
        output_schema=schema,
        step=1,
    )


def _told(request: Request, text: str, words: str) -> Request:
    answer = Message("assistant", (Text(text or "(nothing)"),))
    messages = (*request.messages, answer, Message("user", (Text(words),)))
    return msgspec.structs.replace(request, messages=messages, step=request.step + 1)


def _unheard(delta: Delta) -> None:
    """Nobody watches what code asks for."""
