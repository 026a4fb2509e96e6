"""A driver as a real process, and the means to kill it or its workers, never anybody else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from atlas.testing.chaos_site import Site

if TYPE_CHECKING:
    import psutil


INTERRUPTED: Final = 130


class DriverProcess:
    """One `atlas` command that drives, on a site."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, fault: str) -> None:
        self._process = process
        self._log = log
        self.fault = fault
        self.was_killed = False
        self.was_interrupted = False

    @classmethod
    async def start(cls, site: Site, number: int, words: Sequence[str], fault: str = "") -> Self:
        """Starts one; with `fault`, it strikes itself where that says."""
        log = site.drivers / f"{number}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "atlas", *words, "--vault", str(site.vault)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(site.url, fault),
            )
        return cls(process, log, fault)

    @property
    def pid(self) -> int:
        """Its own until `ended` has returned."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def printed(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    async def ended(self, timeout_s: float) -> int | None:
        """How it ended: 0, an exit code, or minus the signal; None when it has not ended in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    def kill(self) -> bool:
        """Kills it; False when it has ended."""
        if not self.is_running:
            return False
        self.was_killed = True
        self._process.send_signal(signal.SIGKILL)
        return True

    def interrupt(self) -> None:
        """Asks it to park everything and leave, once it is up and can hear that."""
        if self.is_running and self._log.stat().st_size:
            self.was_interrupted = True
            self._process.send_signal(signal.SIGINT)

    def workers(self) -> list[psutil.Process]:
        """Its descendants that execute now."""
        import psutil

        try:
            family = psutil.Process(self.pid).children(recursive=True) if self.is_running else []
            return [each for each in family if each.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def kill_worker(self, choose: int) -> bool:
        """Kills one of its workers; False when there is none."""
        import psutil

        workers = self.workers()
        if not workers:
            return False
        try:
            workers[choose % len(workers)].kill()  # checks the start time: a later process with the pid is spared
        except psutil.NoSuchProcess:
            return False
        return True


def environment(url: str, fault: str = "") -> dict[str, str]:
    """What an `atlas` process is given so that it runs this very code, on this ledger, with this fault."""
    source = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ATLAS_")}
    path = f"{source}{os.pathsep}{known}" if known else source
    return kept | {"PYTHONPATH": path, "ATLAS_FAULT": fault, "ATLAS_LEDGER_URL": url}
