"""The scripted model of a bench of context: does a turn's ordinary work, walks a long way, or asks about the past.

Its tool reads documents from a folder; the actor writes each one just before it asks for it, as the world would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from atlas.kernel.model import Asked, Attempt, OnDelta, Part, Reply, Request, Tab, Text, ToolCall, ToolResult, Usage
from atlas.testing.context_audit import note_problems, said_problems, shown_texts
from atlas.testing.context_finder import UNKNOWN, next_move
from atlas.testing.context_meter import Meter, count_tokens
from atlas.testing.context_world import Happening

MODEL: Final = "scripted:bench"
NOTES_CHECKED: Final = 4
Script: TypeAlias = Callable[[Request], tuple[Part, ...]]

_AGENT: Final = """\
agent:
  name: archivist
  version: 1.0.0
  description: Works through an archive
  type: conversational
  runtime: prompt
  tools: {allow: [fetch]}
  timeout_s: 3600
"""
_PERSONA: Final = """\
# Archivist
You look after an archive. You fetch documents by name, say what is in them, and remember what was said.
"""
_TOOL: Final = '''\
"""The archive of the bench."""

from pathlib import Path

from atlas import tool


@tool(effect="read_only", idempotent=True)
def fetch(name: str) -> str:
    """Fetch a document of the archive.

    name: The document's name.
    """
    text = Path({folder!r}, name).read_text(encoding="utf-8")
    if text.startswith("!"):
        raise RuntimeError(text[1:])
    return text
'''


class Actor:
    """Answers as the script of the moment says, and measures every request."""

    def __init__(self, root: Path) -> None:
        self.meter = Meter()
        self.turn = 0
        self.calls = 0
        self.complaints: list[str] = []
        self.largest_recall = 0
        self._notes: dict[str, bool] = {}
        self._user = self._before = self._answer = ""
        self._script: Script = lambda request: (Text(UNKNOWN),)
        self._documents = root / "documents"
        _write_vault(root, self._documents)

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        """The next parts of the script, with usage as a provider would count it."""
        tokens = self.meter.asked(self.turn, request)
        if request.step == 1:
            self._check_carried(request)
        parts = self._script(request)
        self.meter.said(parts)
        is_calling = any(isinstance(part, ToolCall) for part in parts)
        if not is_calling:
            self._answer = "".join(part.text for part in parts if isinstance(part, Text))
        usage = Usage(tokens, 1 + len(msgspec.json.encode(parts)) // 4)
        reply = Reply(parts, "tool_call" if is_calling else "end", usage, MODEL, is_scripted=True)
        attempt = Attempt(MODEL, usage)
        if tab is not None:
            tab.attempts.append(attempt)
        return Asked(reply, MODEL, (attempt,))

    def work(self, turn: int, happening: Happening) -> None:
        """The next turn fetches its documents one by one and replies; now and then it takes or closes a note."""

        def script(request: Request) -> tuple[Part, ...]:
            if request.step > len(happening.documents):
                return (Text(happening.reply),)
            text = happening.documents[request.step - 1]
            fetch = self._fetch(f"{turn}-{request.step}", text)
            return (fetch, *self._note(turn)) if request.step == 1 else (fetch,)

        self._begin(turn, happening.user, script)

    def walk(self, turn: int, user: str, steps: int, text: Callable[[int], str]) -> None:
        """The next turn takes `steps` steps."""

        def script(request: Request) -> tuple[Part, ...]:
            if request.step >= steps:
                return (Text("That was all of it."),)
            return (self._fetch(f"{turn}-{request.step}", text(request.step)),)

        self._begin(turn, user, script)

    def question(self, turn: int, question: str) -> None:
        """The next turn is answered by the finder; what it uses must stand in its own requests."""

        def script(request: Request) -> tuple[Part, ...]:
            parts = next_move(request)
            self.calls += sum(isinstance(part, ToolCall) for part in parts)
            sizes = [count_tokens(page.encode()) for page in _pages(request)]
            self.largest_recall = max(self.largest_recall, *sizes, 0)
            self.complaints += [f"t{turn}: {one}" for one in unread(parts, request)]
            return parts

        self.calls = 0
        self._begin(turn, question, script)

    def _begin(self, turn: int, user: str, script: Script) -> None:
        self.turn = turn
        self._script = script
        self._before, self._user = self._user, user
        self.meter.said(user)

    def _note(self, turn: int) -> tuple[ToolCall, ...]:
        """Every tenth turn opens a requirement, and fifteen turns later it is met, when another one is open."""
        if turn % 5:
            return ()
        is_open = turn % 10 == 0
        name = f"part {turn if is_open else turn - 15}"
        text = f"{name} has to be checked twice"
        notes = {**self._notes, f"- [ ] requirement {name}: {text}": is_open}
        self._notes = dict(list(notes.items())[-NOTES_CHECKED:])
        note = {"kind": "requirement", "key": name, "text": text, "status": "open" if is_open else "done"}
        return (ToolCall(f"note_{turn}", "note", msgspec.json.encode(note).decode()),)

    def _check_carried(self, request: Request) -> None:
        """The last notes are carried while they are open, and the last exchange is shown."""
        carried, closed = (
            [line for line, is_open in self._notes.items() if is_open is wanted] for wanted in (True, False)
        )
        found = [*note_problems(request, carried, closed), *said_problems(request, (self._before, self._answer))]
        self.complaints += [f"t{self.turn}: {one}" for one in found]

    def _fetch(self, name: str, text: str) -> ToolCall:
        # Not by Path, which remembers every name it ever saw: memory is among the things measured here.
        with open(f"{self._documents}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
        self.meter.said(text)
        return ToolCall(f"call_{name}", "fetch", msgspec.json.encode({"name": name}).decode())


def unread(parts: tuple[Part, ...], request: Request) -> list[str]:
    """What the parts use that does not occur in the request: a finder that knows more than it was shown."""
    shown = "\n".join(shown_texts(request))
    used: list[str] = []
    for part in parts:
        if isinstance(part, Text) and part.text != UNKNOWN:
            used.append(part.text)
        elif isinstance(part, ToolCall):
            arguments = msgspec.json.decode(part.args)
            used += [f"start={one}" if name == "start" else str(one) for name, one in arguments.items()]
    return [f"{one!r} does not occur in the request" for one in used if one not in shown]


def _pages(request: Request) -> list[str]:
    return [part.text for message in request.messages for part in message.parts if isinstance(part, ToolResult)]


def _write_vault(root: Path, documents: Path) -> None:
    documents.mkdir(parents=True)
    agent = root / "agents" / "archivist"
    (agent / "persona").mkdir(parents=True)
    (agent / "tools").mkdir()
    (root / "atlas.config.yaml").write_text("execution: {timeouts: {agent: 3600, chain: 36000}}\n", encoding="utf-8")
    (agent / "agent.yaml").write_text(_AGENT, encoding="utf-8")
    (agent / "persona" / "IDENTITY.md").write_text(_PERSONA, encoding="utf-8")
    (agent / "tools" / "archive.py").write_text(_TOOL.format(folder=str(documents)), encoding="utf-8")
