"""Server-sent events from bytes, however the network cut them.

Both wires put one JSON document into the data of each event and repeat the event's name inside it, so only the
data comes out. Work is linear in the bytes fed, for one huge event in tiny pieces too.
"""

from __future__ import annotations


class Events:
    """Gives the data of each event as soon as its last byte is fed."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of a line whose end has not come
        self._data: list[bytes] = []  # the data lines of an event whose end has not come
        self._after_cr = False
        self._is_first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that these bytes complete."""
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]  # the second half of a line end whose first half has been taken as one
            self._after_cr = False
        if not chunk:
            return []
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            self._after_cr = False
            if b"\n" not in chunk:
                self._line.append(chunk)
                return []
        if self._line:
            self._line.append(chunk)
            chunk = b"".join(self._line)
        *lines, rest = chunk.split(b"\n")
        self._line = [rest] if rest else []
        return self._take(lines)

    def close(self) -> list[bytes]:
        """The event that the end of the stream completes: servers forget the last empty line."""
        lines = [b"".join(self._line), b""]
        self._line = []
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events = []
        if self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        data = self._data
        for line in lines:
            if line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                events.append(b"\n".join(data))
                data.clear()
        return events
