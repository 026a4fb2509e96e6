"""How a value is spelled by the ordinary means of a program; written without a look at what redacts it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus


def spellings(value: str) -> dict[str, str]:
    """The value under each name of a form, as an agent, a tool or a server might write it."""
    data = value.encode()
    return {
        "plain": value,
        "base64": base64.b64encode(data).decode(),
        "base64 behind one": base64.b64encode(b"u" + data + b"?").decode(),
        "base64 behind two": base64.b64encode(b"u:" + data + b"??").decode(),
        "base64 for addresses": base64.urlsafe_b64encode(b"id=" + data).decode(),
        "hex": data.hex(),
        "capital hex": data.hex().upper(),
        "url": quote(value, safe=""),
        "url path": quote(value),
        "url form": quote_plus(value),
        "json": json.dumps(value),
        "json utf-8": json.dumps(value, ensure_ascii=False),
        "json in json": json.dumps(json.dumps({"v": value})),
        "python": repr(value),
    }


def flood(value: str) -> str:
    """Every spelling, a line each."""
    return "\n".join(f"{name}: {spelled}" for name, spelled in spellings(value).items())


def traces(value: str) -> list[bytes]:
    """What each spelling surely leaves behind wherever it was written, for whoever searches."""
    found = [
        value,
        value.encode().hex(),
        value.encode().hex().upper(),
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(value))[3:-3],
        repr(value)[1:-1],
    ]
    for before in (b"", b"u", b"u:"):
        # Whole groups of three bytes that begin inside the value have letters of their own.
        skipped = -len(before) % 3
        inner = value.encode()[skipped:]
        inner = inner[: len(inner) // 3 * 3]
        found.append(base64.b64encode(inner).decode())
        found.append(base64.urlsafe_b64encode(inner).decode())
    return [text.encode() for text in dict.fromkeys(found)]
