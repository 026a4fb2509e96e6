"""Replays runs in a process that cannot reach anybody: whatever asks for the network there is refused and fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from atlas.control.report import ReplayReport
from atlas.testing.chaos_driver import environment
from atlas.testing.chaos_site import Site

_TIMEOUT_S: Final = 600.0
# A process of its own, because what refuses the network cannot be taken out again.
_PROGRAM: Final = """\
import os, socket, sys

def refuse(event, args):
    if event == "socket.getaddrinfo" or (event == "socket.connect" and args[0].family != socket.AF_UNIX):
        raise ConnectionRefusedError("the network is refused here")

sys.addaudithook(refuse)
from atlas.app import Program
from atlas.cli import root

for run in sys.argv[2:]:
    root.main(["replay", run, "--vault", sys.argv[1], "--json"], standalone_mode=False, obj=Program(os.environ))
"""


class Replays(msgspec.Struct, frozen=True):
    """How many runs came out the same, and what is wrong with the others."""

    identical: int
    complaints: tuple[str, ...]


async def replay_all(site: Site, runs: Sequence[str]) -> Replays:
    """Decides every run again, with the network refused."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _PROGRAM, str(site.vault), *runs),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(site.url),
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    reports = msgspec.json.Decoder(ReplayReport).decode_lines(out) if not err else []
    if len(reports) != len(runs):
        return Replays(0, (f"replay: {len(reports)} of {len(runs)} runs: {err.decode(errors='replace')[-2000:]}",))
    complaints = tuple(_complaints(reports))
    return Replays(len(reports) - len(complaints), complaints)


def _complaints(reports: Sequence[ReplayReport]) -> Iterator[str]:
    for report in reports:
        if not report.identical or report.code != "identical":
            yield f"{report.run_id}: replayed differently: {report.mismatches} {report.code}"
