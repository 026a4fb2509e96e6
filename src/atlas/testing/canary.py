"""The proof that secrets do not land: plants them wherever they could leak, then searches all that was kept.

    main     a vault -> agents, tools and a provider that leak -> search every file, table and printed line

Everything is real: the command line in processes of its own, workers, a provider on this machine. `blind` takes the
redaction away, which must make the proof fail: a search that finds nothing then would find nothing ever.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from atlas.testing.canary_forms import flood, traces
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall

_NAMES: Final = ("API_TOKEN", "ODD_KEY", "PIN_CODE", "PEM_KEY", "LAB_KEY")
_TOOL_WAYS: Final = ("text", "print", "large", "throw", "names", "crash")
# The same command, in a process whose redactor was told nothing.
_BLIND: Final = """\
from atlas.kernel import redact
first = redact.Redactor.__init__
redact.Redactor.__init__ = lambda self, values=(): first(self, ())
from atlas.app import main
main()
"""


class CanaryReport(msgspec.Struct, frozen=True):
    """What was planted and what was found; `where` names each place that holds a value.

    `redacted` counts the places that say `[secret:NAME]`: without any, nothing was planted in truth.
    """

    ok: bool
    secrets: int
    forms: int
    runs: int
    files: int
    values: int
    redacted: int
    found: int
    where: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def main(*, report: Callable[[str], None] = lambda line: None, blind: bool = False) -> CanaryReport:
    """Plants, runs and searches in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="atlas-canary-") as folder, ProviderProcess() as provider:
        canary = Canary(Path(folder), provider, blind)
        canary.set_up()
        report(f"planting {len(canary.values)} secrets")
        canary.leak(report)
        report("searching")
        return canary.searched()


class Canary:
    """A vault whose agents leak, and the search through what they left."""

    def __init__(self, root: Path, provider: ProviderProcess, blind: bool) -> None:
        self.values = _values()
        self._vault = root / "vault"
        self._root = root
        self._provider = provider
        self._words = [sys.executable, "-c", _BLIND] if blind else [sys.executable, "-m", "atlas"]
        self._printed: list[bytes] = []
        self._runs = 0
        self._problems: list[str] = []
        self._environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("ATLAS_", "XDG_"))},
            "XDG_CONFIG_HOME": str(root / "config"),
            "LAB_KEY": self.values["LAB_KEY"],
        }

    def set_up(self) -> None:
        """A vault with a provider of its own; each secret comes from another place."""
        shutil.copytree(
            Path(__file__).parent / "canary_vault", self._vault, ignore=shutil.ignore_patterns("__pycache__")
        )
        lab = {"kind": "openai", "base_url": f"{self._provider.url}/v1", "key": "secret:LAB_KEY"}
        config = {
            "models": {"providers": {"lab": lab}, "prices": {"lab:echo": _PRICE}},
            "execution": {"timeouts": {"agent": 120}},
        }
        (self._vault / "atlas.config.yaml").write_text(json.dumps(config), encoding="utf-8")
        odd = self.values["ODD_KEY"].replace("\\", "\\\\").replace('"', '\\"')
        (self._vault / ".env.local").write_text(f'ODD_KEY="{odd}"\n', encoding="utf-8")
        for name in ("API_TOKEN", "PIN_CODE", "PEM_KEY"):
            self._atlas("secrets", "set", name, stdin=self.values[name])

    def leak(self, report: Callable[[str], None]) -> None:
        """Lets everything slip that can."""
        everything = "\n".join(map(flood, self.values.values()))
        for do in ("speak", "throw", "crash", "ask"):
            report(f"an agent's code: {do}")
            self._run("leaky", {"do": do, "text": everything})
        self._atlas("deny", "@last", "--reason", self.values["API_TOKEN"])
        self._atlas("up", "--until-idle")
        for way in _TOOL_WAYS:
            report(f"a tool: {way}")
            call = ActCall("say", json.dumps({"how": way}))
            self._provider.plan(Act(tool_calls=(call,)), Act(text=everything, thinking=everything, piece=3), by="turn")
            self._run("talker", {"text": everything})
        report("a provider that fails")
        loud = {"WWW-Authenticate": self.values["LAB_KEY"], "Location": f"http://127.0.0.1/{self.values['LAB_KEY']}"}
        for status in (401, 302, 400):
            body = json.dumps({"error": {"message": everything}})
            self._provider.plan(
                Act(status=status, headers=loud, body="y" * 480 + everything if status == 400 else body)
            )
            self._run("talker", {"text": "once more"})
        self._provider.plan(
            Act(tool_calls=(ActCall("say", json.dumps({"how": everything})),)), Act(text="ok"), by="turn"
        )
        self._run("talker", {"text": everything})
        self._run("leaky", {"do": "ask"})  # and left open, so that its page is there
        for words in (("runs",), ("inbox",), ("show", "@last"), ("secrets", "list")):
            self._atlas(*words, "--json")

    def searched(self) -> CanaryReport:
        """What every file, every value of every table and every printed line gives away."""
        wanted = {name: traces(value) for name, value in self.values.items()}
        where: set[str] = set()
        redacted: dict[str, int] = dict.fromkeys(wanted, 0)
        files = count = 0
        for place, data in self._kept():
            files += place.startswith("file ")
            count += 1
            for name, forms in wanted.items():
                redacted[name] += f"[secret:{name}]".encode() in data
                if any(form in data for form in forms):
                    where.add(f"{name} in {place}")
        unseen = [
            f"{name} was never redacted, so it was never planted" for name, times in redacted.items() if not times
        ]
        problems = (*self._problems, *unseen)
        return CanaryReport(
            ok=not where and not problems,
            secrets=len(self.values),
            forms=sum(map(len, wanted.values())),
            runs=self._runs,
            files=files,
            values=count,
            redacted=sum(redacted.values()),
            found=len(where),
            where=tuple(sorted(where)[:1000]),
            problems=problems,
        )

    def _kept(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self._vault.rglob("*")):
            # The name of a file can give a value away too; what a person wrote their secrets into is meant to hold them.
            yield f"name {path.parent.name}", os.fsencode(path.name)
            if path.is_file() and path.name != ".env.local":
                yield f"file {path.relative_to(self._vault)}", path.read_bytes()
        for path in sorted((self._vault / ".atlas").glob("*.db")):
            yield from _table_values(path)
        for number, data in enumerate(self._printed):
            yield f"printed {number}", data

    def _run(self, agent: str, value: dict[str, Any]) -> None:
        self._runs += 1
        self._atlas("run", agent, "--input", "-", stdin=json.dumps(value))

    def _atlas(self, *words: str, stdin: str = "") -> None:
        done = subprocess.run(
            [*self._words, *words, "--vault", str(self._vault)],
            input=stdin.encode(),
            capture_output=True,
            env=self._environ,
            timeout=180,
            check=False,
        )
        self._printed += [done.stdout, done.stderr]
        if b"Traceback" in done.stderr or done.returncode == 2:
            self._problems.append(f"atlas {words[0]} {words[1] if len(words) > 1 else ''} did not work")


_PRICE: Final = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}


def _values() -> dict[str, str]:
    """Values of several shapes, new each time."""
    lines = "\n".join(secrets.token_hex(24) for _ in range(3))
    return {
        "API_TOKEN": f"tok-{secrets.token_urlsafe(30)}",
        "ODD_KEY": f'pä"ss/wö+rd%\\ {secrets.token_hex(8)} €',
        "PIN_CODE": str(10**14 + secrets.randbelow(10**14)),
        "PEM_KEY": f"-----BEGIN KEY-----\n{lines}\n-----END KEY-----",
        "LAB_KEY": f"sk-lab-{secrets.token_urlsafe(30)}",
    }


def _table_values(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every text and blob in every table: in the file a long one lies in pieces."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            try:
                rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
            except sqlite3.OperationalError:
                continue  # a table of the text search that holds nothing of its own
            for row in rows:
                for value in row:
                    if isinstance(value, str | bytes):
                        yield f"table {path.name}.{table}", value.encode() if isinstance(value, str) else value
