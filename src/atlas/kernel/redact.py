"""Takes secrets out of text: every value in every form in which it usually travels becomes `[secret:NAME]`.

A driver redacts where bytes enter its process, before anything is decided, recorded or shown, so that a run and its
replay see the same. A `Redactor` is pure and never changes; with no values it does nothing at all. Forms that nobody
would call usual (a cipher, one letter per line) are not found: a tool that wants to give a secret away can.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final, overload

from msgspec.structs import replace

from atlas.kernel.errors import ErrorRecord, Invalid

SHORTEST: Final = 6
"""Characters that a value needs at least: shorter ones stand in too many innocent texts to be taken out."""

NAME_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
_NAME: Final = re.compile(NAME_PATTERN)
_LINE: Final = 16
_NESTED: Final = 3
_CUT: Final = 400
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)


def check_name(name: str) -> str:
    """The name, when a secret can have it; Invalid otherwise."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r:.80} is not a name for a secret",
            hint="Use letters, digits, '_', '-' and '.', beginning with a letter or digit; at most 128.",
            code="secret_name",
        )
    return name


def check_value(name: str, value: str) -> str:
    """The value, when it can be kept out of texts; Invalid, never showing it, otherwise."""
    if len(value) < SHORTEST:
        raise Invalid(
            f"the value of secret {name} has {len(value)} characters",
            hint=f"A secret has at least {SHORTEST}: a shorter one cannot be told from ordinary text.",
            code="secret_too_short",
        )
    if "\0" in value or not _is_unicode(value):
        raise Invalid(f"the value of secret {name} is not text", code="secret_not_text")
    return value


def forms_of(value: str) -> frozenset[str]:
    """The texts that give `value` away: itself, and as base64, URL, hex, JSON and Python spell it."""
    spellings = {value, unicodedata.normalize("NFC", value), unicodedata.normalize("NFD", value), value.strip()}
    # A key of many lines is often printed line by line.
    lines = [line.strip() for line in value.splitlines()]
    spellings.update(line for line in lines if len(line) >= _LINE and not line.startswith("---"))
    found: set[str] = set()
    for spelling in spellings:
        found.update(_spelled(spelling))
    return frozenset(form for form in found if len(form) >= SHORTEST)


class Redactor:
    """Replaces the values of named secrets; `values` are pairs of name and value, too short ones are passed over."""

    __slots__ = ("_forms", "_pattern")

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        self._forms: dict[str, str] = {}
        for name, value in values:
            if len(value) >= SHORTEST:
                for form in forms_of(value):
                    self._forms.setdefault(form, name)
        self._pattern = re.compile(_alternation(sorted(self._forms))) if self._forms else None

    @property
    def is_idle(self) -> bool:
        """Whether it knows no secret, so that everything passes as it is."""
        return self._pattern is None

    def text(self, text: str) -> str:
        """`text` without any of the values."""
        if self._pattern is None:
            return text
        return self._pattern.sub(self._named, text)

    def cut(self, text: str) -> str:
        """`text` that somebody may have shortened: also without a piece of a value at its beginning or end."""
        if self._pattern is None:
            return text
        text = self.text(text)
        return text if len(text) < _CUT else self._trimmed(text)

    def data(self, data: bytes) -> bytes:
        """The bytes without any of the values; what is not UTF-8 stays as it is."""
        if self._pattern is None:
            return data
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def json(self, raw: bytes) -> bytes:
        """JSON without any of the values, still JSON, its other bytes untouched; a number with a value becomes text."""
        if self._pattern is None:
            return raw
        text = bytes(raw).decode("utf-8", "surrogateescape")
        if self._pattern.search(text) is None and "\\u" not in text:
            return raw
        return _TOKEN.sub(self._token, text).encode("utf-8", "surrogateescape")

    def loose_json(self, text: str) -> str:
        """What should be JSON and need not be, as models write it."""
        return text if self._pattern is None else self.text(self.json(text.encode("utf-8", "replace")).decode())

    def value(self, value: Any) -> Any:
        """A JSON value without any of the secrets, in keys too."""
        if self._pattern is None:
            return value
        match value:
            case str():
                return self.text(value)
            case list() | tuple():
                return [self.value(one) for one in value]
            case dict():
                return {self.value(key): self.value(one) for key, one in value.items()}
            case bool() | None:
                return value
            case int() | float():
                return self.text(str(value)) if self._pattern.search(str(value)) else value
        return value

    @overload
    def record(self, error: ErrorRecord) -> ErrorRecord: ...
    @overload
    def record(self, error: ErrorRecord | None) -> ErrorRecord | None: ...
    def record(self, error: ErrorRecord | None) -> ErrorRecord | None:
        """An error's data without any of the values."""
        if self._pattern is None or error is None:
            return error
        return replace(
            error,
            message=self.cut(error.message),
            hint=self.cut(error.hint),
            where=self.cut(error.where),
            detail=self.cut(error.detail),
        )

    def stream(self) -> Stream:
        """A redactor of text that arrives in pieces."""
        return Stream(self)

    def find(self, data: bytes) -> frozenset[str]:
        """The names of the secrets that `data` gives away."""
        if self._pattern is None:
            return frozenset()
        text = data.decode("utf-8", "surrogateescape")
        return frozenset(self._forms[match[0]] for match in self._pattern.finditer(text))

    def split(self, text: str) -> tuple[str, str]:
        """The part of `text` that can be passed on, redacted, and the end that may be the beginning of a value."""
        if self._pattern is None:
            return text, ""
        done, pieces = 0, []
        for match in self._pattern.finditer(text):
            pieces += [text[done : match.start()], self._named(match)]
            done = match.end()
        rest = text[done:]
        held = max((_overlap(rest, form, 1) for form in self._forms), default=0)
        return "".join([*pieces, rest[: len(rest) - held]]), rest[len(rest) - held :]

    def _trimmed(self, text: str) -> str:
        for form, name in self._forms.items():
            size = _overlap(text, form, SHORTEST)
            if size:
                text = f"{text[:-size]}[secret:{name}]"
            size = _overlap(form, text, SHORTEST)
            if size:
                text = f"[secret:{name}]{text[size:]}"
        return text

    def _named(self, match: re.Match[str]) -> str:
        return f"[secret:{self._forms[match[0]]}]"

    def _token(self, match: re.Match[str]) -> str:
        """A string or number of JSON; a string is read before it is searched, so that no escape hides or makes a value."""
        assert self._pattern is not None
        token = match[0]
        if token[0] != '"':
            return json.dumps(self.text(token)) if self._pattern.search(token) else token
        if "\\" not in token and self._pattern.search(token) is None:
            return token
        try:
            text = json.loads(token, strict=False)
        except ValueError:
            return self.text(token)
        redacted = self.text(text)
        return token if redacted == text else json.dumps(redacted)


class Stream:
    """Redacts text that arrives in pieces, also a value that is split over several of them."""

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be passed on now; the rest waits for the next piece."""
        passed, self._held = self._redactor.split(self._held + text)
        return passed

    def hold(self, text: str) -> None:
        """Puts text before whatever comes next; for what another stream held back."""
        self._held += text

    def end(self) -> str:
        """What was held back: nothing follows that could make a value of it."""
        held, self._held = self._held, ""
        return held


def _spelled(value: str) -> Iterator[str]:
    yield value
    data = value.encode("utf-8", "surrogatepass")
    yield from _base64(data)
    yield data.hex()
    yield data.hex().upper()
    for kept in ("", "/", " "):
        quoted = _quoted(data, kept)
        yield quoted.replace(" ", "+")
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted).replace(" ", "+")
    yield repr(value)[1:-1]
    yield repr(data)[2:-1]
    for is_ascii in (True, False):
        nested = value
        for _ in range(_NESTED):
            nested = json.dumps(nested, ensure_ascii=is_ascii)[1:-1]
            yield nested
            yield nested.replace("/", "\\/")


def _quoted(data: bytes, kept: str) -> str:
    """As an address spells it; letters, digits, `_.-~` and what is in `kept` stay as they are."""
    plain = {ord(char) for char in kept} | _PLAIN
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in data)


def _base64(data: bytes) -> Iterator[str]:
    """The letters that `data` surely makes at each of the three places it can have in what is encoded."""
    for before in range(3):
        letters = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        first = (before * 8 + 5) // 6
        # The last letter also depends on what follows, unless the bits come out even.
        last = (before + len(data)) * 8 // 6
        sure = letters[first:last]
        yield sure
        yield sure.replace("+", "-").replace("/", "_")


def _alternation(forms: list[str]) -> str:
    """A pattern for any of the sorted texts, the longest first; common beginnings are written once.

    So at each place of a text only the branches that begin with its character are looked into, however many
    secrets there are.
    """
    branches: list[str] = []
    start = 0
    while start < len(forms):
        end = start
        while end < len(forms) and forms[end][:1] == forms[start][:1]:
            end += 1
        group = forms[start:end]
        shared = _common(group[0], group[-1])
        rest = [form[shared:] for form in group]
        is_whole = rest[0] == ""
        below = _alternation([one for one in rest if one])
        if below:
            below = f"(?:{below})" + ("?" if is_whole else "")
        branches.append(re.escape(group[0][:shared]) + below)
        start = end
    return "|".join(branches)


def _common(one: str, other: str) -> int:
    size = 0
    while size < min(len(one), len(other)) and one[size] == other[size]:
        size += 1
    return size


def _overlap(text: str, form: str, least: int) -> int:
    """How many characters at the end of `text` are the beginning, but not all, of `form`; 0 when fewer than `least`."""
    reach = min(len(text), len(form) - 1)
    if reach < least:
        return 0
    tail = text[len(text) - reach :]
    beginning = form[:least]
    at = tail.find(beginning)
    while at >= 0:
        if form.startswith(tail[at:]):
            return reach - at
        at = tail.find(beginning, at + 1)
    return 0


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
