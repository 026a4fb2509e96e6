"""Our side of the tool loop: a prompt agent in a vault, every step durable, through the public Python API.

The ledger is the one every vault gets: SQLite, WAL, synchronous=FULL. Its tool runs in a worker process, as tools do;
the second figure is with a built-in tool, which runs in the driver's process, as every peer's does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loop_workload import QUESTION, Loop, Options, serve

from atlas import Atlas

_CONFIG = """\
execution:
  max_concurrent_agents: {runs}
models:
  providers:
    bench: {{kind: openai, base_url: "{url}", max_in_flight: {runs}, stream: {stream}}}
  tiers:
    fast: ["bench:lookup-{steps}"]
    balanced: ["bench:read_file-{steps}"]
  prices:
    "bench:lookup-{steps}": {{input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.4}}
    "bench:read_file-{steps}": {{input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.4}}
"""


class AtlasLoop:
    """An agent of an open vault."""

    def __init__(self, atlas: Atlas, agent: str) -> None:
        self._atlas = atlas
        self._agent = agent

    async def run(self) -> str:
        """One durable run in a session of its own."""
        return str((await self._atlas.run_async(self._agent, {"text": QUESTION})).unwrap()["text"])


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The vault with the model's server as its provider."""
    vault = Path(options.folder)
    most = max(options.runs, 20)
    stream = str(options.is_streamed).lower()
    config = _CONFIG.format(url=options.url, steps=options.steps, runs=most, stream=stream)
    (vault / "atlas.config.yaml").write_text(config)
    with Atlas(vault, environ={}) as atlas:
        yield AtlasLoop(atlas, "reader" if options.is_builtin else "looker")


if __name__ == "__main__":
    serve(opened)
