"""What the engine's tests share: a run of a function as if it were an agent's code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atlas.engine.agent import AgentBase, AgentContext
from atlas.engine.inline import InlineExecutor
from unit.engine.fake_driver import Body, FakeDriver, Open


@pytest.fixture
def drive() -> Open:
    """Opens a driver for an agent whose `execute` is the given coroutine function of the context."""

    @asynccontextmanager
    async def opened(body: Body, **options: Any) -> AsyncIterator[FakeDriver]:
        class Demo(AgentBase):
            async def execute(self, input: dict[str, Any], context: AgentContext) -> Any:
                return await body(context)

        async with InlineExecutor({"demo": Demo}) as executor:
            yield FakeDriver(executor, **options)

    return opened
