"""The effects an agent's code asks for, each under a name that is the same each time the code runs.

The name is the caller's `key`, or else kind, name, a hash of the arguments and how many equal calls came before.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Final, get_args

import msgspec

from atlas.engine import value
from atlas.kernel.code import CallMade
from atlas.kernel.errors import Conflict, Invalid
from atlas.kernel.event import EffectClass, EffectKind

_CLASSES: Final[tuple[str, ...]] = get_args(EffectClass)
_NAME_LIMIT: Final = 200
_NO_ARGS: Final = b"[]"
_NO_ARGS_HASH: Final = hashlib.sha256(_NO_ARGS).hexdigest()
_ARGS_HINT: Final = "Pass plain data (text, numbers, lists, dicts); close over the rest and give key=."


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call, named. Calls with the same explicit key take turns, so the second finds the first one's record."""

    effect: str
    kind: EffectKind
    name: str
    args: bytes
    args_hash: str
    effect_class: EffectClass
    idempotent: bool = False
    can_probe: bool = False
    turn: asyncio.Lock | None = None

    def made(self, call_id: int) -> CallMade:
        """This call as the message that asks for it."""
        return CallMade(
            call_id,
            self.effect,
            self.kind,
            self.name,
            msgspec.Raw(self.args),
            self.args_hash,
            self.effect_class,
            self.idempotent,
            self.can_probe,
        )


class Calls:
    """Names the calls of one execution; refuses what can be seen to be wrong before anything is asked."""

    __slots__ = ("_keyed", "_seen")

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._keyed: dict[str, tuple[str, asyncio.Lock]] = {}

    def step(
        self,
        name: str,
        fn: Callable[..., object],
        args: tuple[object, ...],
        effect_class: EffectClass,
        idempotent: bool,
        probe: Callable[..., object] | None,
        key: str | None,
    ) -> Call:
        """The call of a step."""
        _check_name("a step's name", name)
        if not callable(fn):
            raise Invalid(
                f"step {name!r} needs a function, not a {type(fn).__name__}",
                hint="Pass the function and its arguments: context.step('send', send, order_id).",
            )
        if probe is not None and not callable(probe):
            raise Invalid(f"the probe of step {name!r} is not a function")
        if effect_class not in _CLASSES:
            raise Invalid(f"unknown effect class {effect_class!r}", hint=f"Use one of {', '.join(_CLASSES)}.")
        if args:
            data = _encode(args, f"an argument of step {name!r}", canonical=True)
            args_hash = hashlib.sha256(data).hexdigest()
        else:
            data, args_hash = _NO_ARGS, _NO_ARGS_HASH
        effect, turn = self._named("step", name, args_hash, key)
        return Call(effect, "step", name, data, args_hash, effect_class, idempotent, probe is not None, turn)

    def spawn(self, agent: str, input: Mapping[str, object], key: str | None) -> Call:
        """The call of a spawn; the child gets the input in the order it was written."""
        _check_name("an agent's name", agent)
        args = {"agent": agent, "input": input if isinstance(input, dict) else _plain(agent, input)}
        what = f"the input for agent {agent!r}"
        data = _encode(args, what)
        args_hash = hashlib.sha256(_encode(args, what, canonical=True)).hexdigest()
        effect, turn = self._named("spawn", agent, args_hash, key)
        return Call(effect, "spawn", agent, data, args_hash, "reversible_write", turn=turn)

    def model(self, model: str, args: Mapping[str, object], key: str | None) -> Call:
        """The call of a question to a model."""
        _check_name("a model's name", model)
        data = _encode(args, f"the question to {model!r}", canonical=True)
        args_hash = hashlib.sha256(data).hexdigest()
        effect, turn = self._named("model", model, args_hash, key)
        return Call(effect, "model", model, data, args_hash, "read_only", turn=turn)

    def _named(self, kind: str, name: str, args_hash: str, key: str | None) -> tuple[str, asyncio.Lock | None]:
        if key is None:
            prefix = f"{kind}:{name}:{args_hash[:12]}"
            occurrence = self._seen.get(prefix, 0)
            self._seen[prefix] = occurrence + 1
            return f"{prefix}:{occurrence}", None
        _check_name("a key", key)
        effect = f"{kind}:{name}:{key}"
        known, turn = self._keyed.setdefault(effect, (args_hash, asyncio.Lock()))
        if known != args_hash:
            raise Conflict(
                f"key {key!r} of {kind} {name!r} was used before with other arguments",
                hint="Give each different call a key of its own.",
                code="key_reused",
            )
        return effect, turn


def _encode(args: object, what: str, *, canonical: bool = False) -> bytes:
    data = value.encode(args, what, hint=_ARGS_HINT, canonical=canonical)
    if len(data) > value.SIZE_LIMIT:
        raise Invalid(
            f"{what} has {len(data)} bytes; the limit is {value.SIZE_LIMIT}",
            hint="Write it to a file and pass the file's name.",
            code="args_too_large",
        )
    return data


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise Invalid(f"{what} is printable text of 1 to {_NAME_LIMIT} characters, not {name!r:.80}")


def _plain(agent: str, input: object) -> dict[str, object]:
    if not isinstance(input, Mapping):
        raise Invalid(f"the input for agent {agent!r} is a dict, not a {type(input).__name__}")
    return dict(input)
