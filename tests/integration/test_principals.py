"""Nothing crosses from one principal to another: not a session, a key, a question, or a run; nor by a look-alike name."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agents_for_tests import AGENTS, WORLD

from atlas.app import open_host
from atlas.control.host import Host
from atlas.kernel.errors import Conflict, Invalid, NotFound

ALIASES = [
    "Ann",
    "ANN",
    "ann ",
    " ann",
    "ann\u200b",
    "\u0430nn",  # Cyrillic a
    "\u03b1nn",  # Greek alpha
    "\uff41nn",  # full width a
    "a\u0301nn",
    "\u00e1nn",
    "ann\n",
    "",
]


def in_host(root: Path, work: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        root.mkdir()
        async with asyncio.timeout(60), open_host(root, {}, agents=AGENTS) as host:
            await work(host)

    asyncio.run(main())


async def submit(host: Host, log: str, *do: str, principal: str, session_id: str = "", key: str = "") -> str:
    value = {"log": log, "do": list(do)}
    return (await host.submit("worker", value, principal=principal, session_id=session_id, key=key)).run_id


@pytest.fixture
def log() -> str:
    return uuid.uuid4().hex


def test_a_session_belongs_to_one_principal(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        await submit(host, log, principal="ann", session_id="ses_canary")
        for other in ("bob", "owner", "ann2", "ann.", "ann/x"):
            with pytest.raises(Conflict):
                await submit(host, log, principal=other, session_id="ses_canary")

    in_host(vault_dir, work)


def test_the_same_key_of_two_principals_is_two_runs(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        first = await submit(host, log, "write:ann", principal="ann", key="canary")
        other = await submit(host, log, "write:bob", principal="bob", key="canary")
        again = await submit(host, log, "write:ann", principal="ann", key="canary")
        assert first == again != other

    in_host(vault_dir, work)


@pytest.mark.parametrize("alias", ALIASES, ids=ascii)
def test_a_name_that_looks_like_another_is_refused_and_leaves_nothing(vault_dir: Path, log: str, alias: str) -> None:
    async def work(host: Host) -> None:
        head = await host.ledger.head()
        with pytest.raises(Invalid) as caught:
            await submit(host, log, principal=alias)
        assert caught.value.reason == "principal_invalid"
        with pytest.raises(Invalid):
            await host.inbox(alias)
        assert await host.ledger.head() == head

    in_host(vault_dir, work)


def test_questions_and_runs_of_others_are_not_there(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        mine = await submit(host, log, "mail:ann", principal="ann")
        theirs = await submit(host, log, "mail:bob", principal="bob")
        for run_id in (mine, theirs):
            assert await host.drive(run_id) == "waiting"
        assert [entry.run_id for entry in await host.inbox("ann")] == [mine]
        assert [entry.run_id for entry in await host.inbox("bob")] == [theirs]
        assert {entry.run_id for entry in await host.inbox()} == {mine, theirs}
        effect = (await host.inbox("bob"))[0].effect
        with pytest.raises(NotFound):
            await host.answer(theirs, effect, True, principal="ann")
        with pytest.raises(NotFound):
            await host.cancel(theirs, "not yours", principal="ann")
        await host.answer(theirs, effect, True, principal="bob")
        assert await host.drive(theirs) == "succeeded"
        assert WORLD[log] == ["bob"]

    in_host(vault_dir, work)
