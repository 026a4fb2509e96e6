"""Runs the shipped contract of the model against both wires, each over real HTTP, and the script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

pytest.register_assert_rewrite("atlas.testing.model")

from atlas.kernel.model import Model  # noqa: E402 - after the asserts are made to explain themselves
from atlas.models.anthropic import AnthropicModel  # noqa: E402
from atlas.models.http import Http, Patience  # noqa: E402
from atlas.models.openai import OpenAIModel  # noqa: E402
from atlas.models.scripted import ScriptedModel, script_from  # noqa: E402
from atlas.testing.clock import FakeClock  # noqa: E402
from atlas.testing.model import Case, Fails, cases  # noqa: E402
from atlas.testing.provider import ProviderServer  # noqa: E402
from atlas.testing.provider_wire import Act, Wire  # noqa: E402

STATUS = {"auth": 401, "rate_limit": 429, "server": 500, "overflow": 400}
CUT_OFF = {"openai": "length", "anthropic": "max_tokens"}


class WireRig:
    """A model that asks a server on this machine."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._server: ProviderServer | None = None

    @asynccontextmanager
    async def open(self, answer: Act | Fails, *, stream: bool = True) -> AsyncIterator[Model]:
        async with ProviderServer() as self._server:
            self._server.plan(self._act(answer))
            http = Http(Patience())
            url = f"{self._server.url}/v1" if self._wire == "openai" else self._server.url
            kind = OpenAIModel if self._wire == "openai" else AnthropicModel
            model = kind(http, FakeClock(), no_blob, base_url=url, key="the-key", stream=stream)
            try:
                yield model
            finally:
                await model.close()
                await http.close()

    async def open_calls(self) -> int:
        return self._server.record().open if self._server is not None else 0

    def _act(self, answer: Act | Fails) -> Act:
        if isinstance(answer, Act):
            stop = CUT_OFF[self._wire] if answer.stop == "length" else answer.stop
            return msgspec.structs.replace(answer, stop=stop, omit_end=answer.hang)
        message = "the prompt is too long: context_length_exceeded" if answer.kind == "overflow" else "no"
        headers = {"Retry-After": f"{answer.retry_after_s:g}"} if answer.retry_after_s else {}
        body = msgspec.json.encode({"error": {"message": message}}).decode()
        return Act(status=STATUS[answer.kind], headers=headers, body=body)


class ScriptedRig:
    """A model that reads from a script; there is nobody on the other side."""

    @asynccontextmanager
    async def open(self, answer: Act | Fails, *, stream: bool = True) -> AsyncIterator[Model]:
        model = ScriptedModel(script_from({"replies": [_reply(answer)]}))
        yield model
        await model.close()

    async def open_calls(self) -> int:
        return 0


def _reply(answer: Act | Fails) -> dict[str, object]:
    if isinstance(answer, Fails):
        return {"error": {"kind": answer.kind, "retry_after_s": answer.retry_after_s}}
    reply: dict[str, object] = {"text": answer.text}
    reply["tool_calls"] = [{"name": call.name, "args": call.args} for call in answer.tool_calls]
    if answer.usage is not None:
        reply["usage"] = {
            "in": answer.usage.tokens_in,
            "out": answer.usage.tokens_out,
            "cached": answer.usage.cached_in,
        }
    if answer.stop:
        reply["stop"] = answer.stop
    if answer.hang:
        reply |= {"thinking": "Hm.", "delay_ms": 3_600_000}
    return reply


async def no_blob(digest: str) -> bytes:
    raise AssertionError(digest)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_wires(case: Case, wire: Wire) -> None:
    asyncio.run(case.check(WireRig(wire)))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_scripted(case: Case) -> None:
    asyncio.run(case.check(ScriptedRig()))
