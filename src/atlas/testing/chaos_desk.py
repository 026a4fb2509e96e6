"""What a person does at a terminal beside a storm: answers what waits, and reads the record."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from atlas.control.history import bodies
from atlas.control.host import Host
from atlas.kernel.errors import Conflict, NotFound
from atlas.kernel.event import Body
from atlas.testing.chaos_site import Site


async def answer_all(host: Host, site: Site) -> int:
    """Approves what asks, and settles what is in doubt after a look outside; how many were answered."""
    answered = 0
    for entry in await host.inbox():
        # Somebody else may have been faster, or the run is about to take the answer it has.
        with suppress(Conflict, NotFound):
            if entry.kind == "approval":
                await host.answer(entry.run_id, entry.effect, approved=True)
            else:
                key = f"{entry.run_id}/{entry.effect}"
                ends = [line for line in site.lines() if line.key == key and line.mark == "end"]
                if ends:
                    await host.resolve(entry.run_id, entry.effect, "done", msgspec.json.encode(ends[0].result))
                else:
                    await host.resolve(entry.run_id, entry.effect, "not_done")
            answered += 1
    return answered


async def all_bodies(host: Host) -> dict[str, list[Body]]:
    """Everything on record, by run, in order."""
    position, found = 0, dict[str, list[Body]]()
    while page := await host.ledger.feed(position, 1000):
        for event, body in bodies(page):
            found.setdefault(event.run_id, []).append(body)
        position = page[-1].position
    return found
