"""What this process must not let land, and what crosses its border without it.

Values are learned from the vault's store and whenever one is handed out. A value goes to an agent's worker or to a
tool's process over the private socket of each, when the contract names it, and to nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from atlas.kernel.code import CallMade, Finished, FromCode, Noted, Performed, Printed, Probed, Steered, ValueTaken
from atlas.kernel.errors import AtlasError, Invalid, NotFound, PolicyRefused, Problem
from atlas.kernel.model import ModelError
from atlas.kernel.port import Secrets
from atlas.kernel.redact import Redactor


class Redaction:
    """What this process knows not to let land. A value once known stays known, also when it was changed since.

    The store is looked at again when the last look is `refresh_s` ago.
    """

    def __init__(self, secrets: Secrets, refresh_s: float = 1.0) -> None:
        self._secrets = secrets
        self._refresh_s = refresh_s
        self._fresh_until = 0.0
        self._looking = asyncio.Lock()
        self._known: set[tuple[str, str]] = set()
        self.redactor = Redactor()

    async def refresh(self) -> None:
        """Learns every value that the vault's store has now."""
        now = asyncio.get_running_loop().time()
        if now < self._fresh_until:
            return
        # Whoever comes while another looks waits for what that one finds. Beside the loop: a keyring may take its time.
        async with self._looking:
            if now >= self._fresh_until:
                self._learn(await asyncio.to_thread(self._read))
                self._fresh_until = now + self._refresh_s

    def get(self, name: str) -> str | None:
        """The value of one secret, if it has one; from here on it is known."""
        value = self._secrets.get(name)
        if value is not None:
            self._learn([(name, value)])
        return value

    async def fetch(self, names: Sequence[str]) -> dict[str, str | None]:
        """The values for these names, None where there is none; from here on they are known."""
        if not names:
            return {}
        found = await asyncio.to_thread(lambda: {name: self._secrets.get(name) for name in names})
        self._learn((name, value) for name, value in found.items() if value is not None)
        return found

    async def grant(self, who: str, named: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
        """The values that a tool wants, all of them; refused when the agent's contract does not name each."""
        unnamed = [name for name in wanted if name not in named]
        if unnamed:
            raise unnamed_secret(who, unnamed[0])
        given: dict[str, str] = {}
        for name, value in (await self.fetch(wanted)).items():
            if value is None:
                raise missing_secret(name)
            given[name] = value
        return given

    def _read(self) -> list[tuple[str, str]]:
        values: list[tuple[str, str]] = []
        for name in self._secrets.names():
            try:
                value = self._secrets.get(name)
            except Invalid as error:
                # Too short to be a secret: nobody can be given it, so it need not be looked for.
                if error.reason != "secret_too_short":
                    raise
                continue
            if value is not None:
                values.append((name, value))
        return values

    def _learn(self, values: Iterable[tuple[str, str]]) -> None:
        new = set(values) - self._known
        if new:
            self._known |= new
            self.redactor = Redactor(sorted(self._known))

    def text(self, text: str) -> str:
        """Text without any of the values that are known now."""
        return self.redactor.text(text)

    def error(self, error: AtlasError) -> AtlasError:
        """The same error without any of the values."""
        redactor = self.redactor
        if redactor.is_idle:
            return error
        record = redactor.record(error.record())
        error.message, error.hint, error.where, error.detail = record.message, record.hint, record.where, record.detail
        error.args = (record.message,)
        if isinstance(error, Invalid):
            error.problems = tuple(_problem(redactor, one) for one in error.problems)
        if isinstance(error, ModelError):
            error.attempts = tuple(replace(one, error=redactor.record(one.error)) for one in error.attempts)
        return error

    def message(self, message: FromCode) -> FromCode:
        """What code says without any of the values; printed text needs `Listener`, because it comes in pieces."""
        redactor = self.redactor
        if redactor.is_idle:
            return message
        match message:
            case CallMade():
                # The hash stays that of the call as it was made: by it the code finds its record again.
                return replace(
                    message,
                    effect=redactor.text(message.effect),
                    name=redactor.text(message.name),
                    args=_raw(redactor, message.args),
                )
            case Performed():
                return replace(message, result=_raw(redactor, message.result), error=redactor.record(message.error))
            case Probed():
                return replace(message, result=_raw(redactor, message.result), message=redactor.cut(message.message))
            case Noted():
                return replace(message, message=redactor.cut(message.message))
            case Printed():
                return replace(message, text=redactor.cut(message.text))
            case Finished():
                return replace(message, output=_raw(redactor, message.output), error=redactor.record(message.error))
            case Steered() | ValueTaken():
                return message
            case _:
                assert_never(message)


def unnamed_secret(who: str, name: str) -> PolicyRefused:
    """The refusal of a secret that a contract does not name."""
    return PolicyRefused(
        f"the contract of {who} does not name the secret {name}",
        hint=f"Add it to its agent.yaml: secrets: [{name}].",
        code="secret_not_named",
    )


def missing_secret(name: str) -> NotFound:
    """The error for a secret that has no value."""
    return NotFound(f"the secret {name} is not set", hint=f"Run 'atlas secrets set {name}'.", code="secret_missing")


def _problem(redactor: Redactor, problem: Problem) -> Problem:
    return replace(
        problem,
        message=redactor.cut(problem.message),
        path=redactor.text(problem.path),
        hint=redactor.cut(problem.hint),
    )


def _raw(redactor: Redactor, raw: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(redactor.json(bytes(raw)))
