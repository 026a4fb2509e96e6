"""Installs a package with hooks, as pip would leave it: a module and the metadata that names its entry points."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
import asyncio
from pathlib import Path

from atlas.kernel.hook import Added, Continue, Deny, Hook, Stop
from atlas.kernel.model import ToolResult

SAYS = {
    "reset_for_turn": lambda words: Deny(words or "not today"),
    "before_step": lambda words: Deny(words or "no more steps"),
    "prepare_messages": lambda words: Added("House style", "Answer in rhyme."),
    "record_step_usage": lambda words: Stop(words or "too dear"),
    "after_step": lambda words: Stop(words or "seen enough", counts_as_stuck=True),
    "should_continue_after_stop": lambda words: Continue(words or "Look again."),
    "authorize_tool": lambda words: Deny(words or "not that one"),
    "transform_tool_result": lambda words: ToolResult("", words or "changed"),
}


class Unprintable(BaseException):
    def __str__(self):
        raise self


class Unshown:
    def __repr__(self):
        raise Unprintable


async def cancel_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def cancel_itself_and_go_on():
    asyncio.current_task().cancel()


async def cancel_what_it_waits_for():
    other = asyncio.ensure_future(asyncio.sleep(60))
    other.cancel()
    await other


async def hold_on():
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return None


async def decide_what_cannot_be_shown():
    return Unshown()


def raising(error):
    async def broken():
        raise error
    return broken


BREAKS = {
    "error": raising(RuntimeError("the gate is broken")),
    "cancelled": raising(asyncio.CancelledError("the gate is broken")),
    "generator": raising(GeneratorExit("the gate is broken")),
    "group": raising(BaseExceptionGroup("several", [KeyboardInterrupt()])),
    "exit": raising(SystemExit(3)),
    "unprintable": raising(Unprintable()),
    "cancels itself": cancel_itself,
    "cancels itself and goes on": cancel_itself_and_go_on,
    "cancels what it waits for": cancel_what_it_waits_for,
    "holds on": hold_on,
    "unshown": decide_what_cannot_be_shown,
}


class Gate(Hook):
    """Writes down each moment it is asked at, and speaks at those that `at` names: `before_step:2`.

    It says `words`, or a few of its own.
    """

    def __init__(
        self,
        log: str,
        at: list[str] = [],
        fails: str = "closed",
        breaks: str = "",
        words: str = "",
        how: str = "error",
    ):
        if not isinstance(log, str):
            raise SystemExit(3) if log is None else TypeError("log is no path")
        self.log, self.at, self.fails, self.breaks = Path(log), at, fails, breaks
        self.words, self.how = words, how

    async def _asked(self, moment, view):
        with self.log.open("a") as log:
            log.write(f"{moment}:{view.step}\\n")
        if moment == self.breaks:
            return await BREAKS[self.how]()
        return SAYS[moment](self.words) if f"{moment}:{view.step}" in self.at else None


def _moment(name):
    async def asked(self, view, *rest):
        return await self._asked(name, view)
    return asked


for name in SAYS:
    setattr(Gate, name, _moment(name))

not_a_hook = 3
'''


def install(site: Path) -> Path:
    """The folder to put on the path."""
    site.mkdir(parents=True, exist_ok=True)
    (site / "acme_gate.py").write_text(MODULE)
    info = site / "acme_gate-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gate\nVersion: 1.0\n")
    (site / "acme_exit.py").write_text("raise SystemExit('no licence')\n")
    (info / "entry_points.txt").write_text(
        "[atlas.hooks]\nacme_gate = acme_gate:Gate\nacme_number = acme_gate:not_a_hook\nacme_gone = acme_nowhere:Hook\n"
        "acme_exit = acme_exit:Hook\n"
    )
    return site
