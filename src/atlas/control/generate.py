"""Structured generation for agents' code: one question, an object that fits its schema, at most two repairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from atlas.control.loop import MAX_REPAIRS, Asker, bare_json
from atlas.control.world import Effected
from atlas.kernel.code import Need
from atlas.kernel.errors import RunFailed
from atlas.kernel.hold import Hold
from atlas.kernel.model import Delta, Message, Request, Tab, Text

_BYTES_PER_TOKEN: Final = 3
_REPAIR: Final = 200
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

    def __init__(self, asker: Asker, complain: Callable[[dict[str, Any], Any], str | None]) -> None:
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
        for _ in range(MAX_REPAIRS + 1):
            asked = await self._asker.ask(wanted.model, request, _unheard, tab)
            text = "".join(part.text for part in asked.reply.parts if isinstance(part, Text))
            label = asked.label
            if wanted.output_schema is None:
                return Effected(msgspec.json.encode(text), label)
            value, complaint = self._checked(wanted.output_schema, text)
            if complaint is None:
                return Effected(msgspec.json.encode(value), label)
            request = _repair(request, text, complaint)
        raise RunFailed(f"the model's answer breaks its schema: {complaint}", code="output_invalid")

    def _checked(self, schema: dict[str, Any], text: str) -> tuple[Any, str | None]:
        try:
            value = msgspec.json.decode(bare_json(text))
        except msgspec.DecodeError as error:
            return None, f"it is not JSON ({error})"
        return value, self._complain(schema, value)


def need_of(args: bytes) -> Need:
    """What a question of an agent's code may use at most, repairs included; rather too much than too little."""
    wanted = msgspec.json.decode(args, type=Wanted)
    raw = msgspec.json.encode(_request(wanted))
    asks = _asks(wanted)
    # Each repair reads the answer before it, and some words more.
    read = asks * (-(-len(raw) // _BYTES_PER_TOKEN)) + (asks - 1) * asks // 2 * (wanted.max_output_tokens + _REPAIR)
    return Need(wanted.model, read, asks * wanted.max_output_tokens, asks=asks)


def _asks(wanted: Wanted) -> int:
    return 1 if wanted.output_schema is None else MAX_REPAIRS + 1


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


def _repair(request: Request, text: str, complaint: str) -> Request:
    said = Message("assistant", (Text(text or "(nothing)"),))
    told = Message("user", (Text(f"That does not fit: {complaint}. Answer again with nothing but the JSON."),))
    return msgspec.structs.replace(request, messages=(*request.messages, said, told), step=request.step + 1)


def _unheard(delta: Delta) -> None:
    """Nobody watches what code asks for."""
