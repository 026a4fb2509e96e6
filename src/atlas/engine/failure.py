"""What an agent's code raised, as data: one line that says what, the place in the agent's own files, a short trace."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from atlas.kernel.errors import AtlasError, ErrorRecord

_ATLAS: Final = str(Path(__file__).parent.parent)
_MESSAGE_LIMIT: Final = 2_000
_FRAMES: Final = 8


def record_of(error: BaseException, folder: str, code: str, longest: int = _MESSAGE_LIMIT) -> ErrorRecord:
    """`error` as data: its own code when it is one of ours, else `code`; never raises."""
    leaf, others = _leaf(error)
    if isinstance(leaf, AtlasError):
        return leaf.record()
    if isinstance(leaf, MemoryError):
        return ErrorRecord(
            "memory_limit",
            "the agent needed more memory than it may have",
            hint="Hold less in memory at a time, or raise the agent's memory limit.",
            where=_where(leaf, folder),
            detail=_trace(leaf, folder),
        )
    detail = _trace(leaf, folder)
    if others:
        detail += f"\n(and {others} more errors in the same group)"
    return ErrorRecord(code, describe(leaf, longest), where=_where(leaf, folder), detail=detail)


def describe(error: BaseException, longest: int = _MESSAGE_LIMIT) -> str:
    """`TypeName: text`, valid Unicode, of bounded length."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the text of an agent's own exception is the agent's code too
        text = "(its text cannot be shown)"
    name = type(error).__name__
    return clean(f"{name}: {text}" if text else name)[:longest]


def clean(text: str) -> str:
    """`text`, of whatever kind of text it is, as a plain one with anything that is not valid Unicode spelled out."""
    plain = str.__str__(text)
    return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode()


def _leaf(error: BaseException) -> tuple[BaseException, int]:
    """The first single error of a group, and how many others there are: a group's own text says nothing."""
    others = 0
    while isinstance(error, BaseExceptionGroup):
        others += len(error.exceptions) - 1
        error = error.exceptions[0]
    return error, others


def _where(error: BaseException, folder: str) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename, folder)}:{error.lineno or 0}:{error.offset or 0}"
    frames = _frames(error)
    own = [frame for frame in frames if folder and frame.filename.startswith(f"{folder}/")]
    chosen = own or frames
    return f"{_short(chosen[-1].filename, folder)}:{chosen[-1].lineno}" if chosen else ""


def _trace(error: BaseException, folder: str) -> str:
    lines: list[str] = []
    for frame in _frames(error)[-_FRAMES:]:
        lines.append(f"{_short(frame.filename, folder)}:{frame.lineno} in {frame.name}")
        if frame.line:
            lines.append(f"    {frame.line}")
    return clean("\n".join(lines))


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that are not Atlas's own, nor the import machinery's."""
    found = traceback.extract_tb(error.__traceback__)
    return [f for f in found if not f.filename.startswith((_ATLAS, "<frozen importlib"))]


def _short(filename: str, folder: str) -> str:
    return filename.removeprefix(f"{folder}/") if folder else filename
