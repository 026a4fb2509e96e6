"""The tools that crash proofs of prompt agents use: every call is lines in a file outside the vault.

A call writes `begin` when it is entered and `end` when the world has changed, with a moment in between in which it
can be killed. The file `outside.txt` beside this one says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path

from atlas import Done, tool

_BOOK = Path(__file__).with_name("outside.txt").read_text(encoding="utf-8").strip()
_LONGEST_S = 0.03


def is_filed(n: int, effect_key: str) -> Done | None:
    """Whether `probed` happened: the book says so."""
    for line in Path(_BOOK).read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found["key"] == effect_key and found["mark"] == "end":
            return Done(_said("probed", n))
    return None


@tool(effect="read_only", resources=("slip:{n}",))
def look(n: int, effect_key: str) -> str:
    """Looks at a slip; changes nothing."""
    return _act("look", n, effect_key)


@tool(idempotent=True, resources=("slip:{n}",))
async def again(n: int, effect_key: str) -> str:
    """Stamps a slip; twice is as good as once."""
    _write("begin", "again", n, effect_key)
    await asyncio.sleep(random.random() * _LONGEST_S)
    _write("end", "again", n, effect_key)
    return _said("again", n)


@tool(resources=("slip:{n}",), probe=is_filed)
def probed(n: int, effect_key: str) -> str:
    """Files a slip; twice would be wrong, and the book says whether it happened."""
    return _act("probed", n, effect_key)


@tool(resources=("slip:{n}",))
def once(n: int, effect_key: str) -> str:
    """Pays a slip; twice would be wrong, and only a person can find out whether it happened."""
    return _act("once", n, effect_key)


def _act(kind: str, n: int, effect_key: str) -> str:
    _write("begin", kind, n, effect_key)
    time.sleep(random.random() * _LONGEST_S)
    _write("end", kind, n, effect_key)
    return _said(kind, n)


def _said(kind: str, n: int) -> str:
    return f"{kind} {n} is in the book"


def _write(mark: str, kind: str, n: int, effect_key: str) -> None:
    line = {"mark": mark, "kind": kind, "key": effect_key, "pid": os.getpid(), "driver": os.getppid(), "result": n}
    file = os.open(_BOOK, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, json.dumps(line | {"order": ""}).encode() + b"\n")
    finally:
        os.close(file)
