"""What a worker process prints, as it prints it: two pipes read in small batches and decoded."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

Stream: TypeAlias = Literal["stdout", "stderr"]

CHUNK: Final = 16 * 1024
_READS: Final = 64
_BATCH_S: Final = 0.02


class Capture:
    """Reads stdout and stderr; `emit` gets every piece of text with the stream and its size in bytes, in order.

    After the first byte it waits a moment, so that a thousand printed lines arrive as a few pieces.
    """

    def __init__(self, stdout: int, stderr: int, emit: Callable[[Stream, str, int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._emit = emit
        self._timer: asyncio.TimerHandle | None = None
        self._pipes: list[tuple[Stream, int]] = [("stdout", stdout), ("stderr", stderr)]
        self._ready = select.poll()
        self.reset()
        for _stream, pipe in self._pipes:
            os.set_blocking(pipe, False)
            self._ready.register(pipe, select.POLLIN)
        self._listen()

    def reset(self) -> None:
        """Forgets half a character that the last run left behind."""
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": new("replace"), "stderr": new("replace")}

    def collect(self) -> None:
        """Emits everything that was written so far."""
        if not self._ready.poll(0):  # mostly there is nothing, and one look is cheaper than two reads that fail
            return
        for stream, pipe in list(self._pipes):
            # A pipe holds 64 KB, so a bounded number of reads gets all that was written before this call.
            for _ in range(_READS):
                if not self._read(stream, pipe):
                    break

    def close(self) -> None:
        """Reads no more."""
        if self._timer is not None:
            self._timer.cancel()
        for _stream, pipe in self._pipes:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        self._pipes = []

    def _listen(self) -> None:
        for _stream, pipe in self._pipes:
            self._loop.add_reader(pipe, self._wait)

    def _wait(self) -> None:
        for _stream, pipe in self._pipes:
            self._loop.remove_reader(pipe)
        self._timer = self._loop.call_later(_BATCH_S, self._batch)

    def _batch(self) -> None:
        self.collect()
        self._listen()

    def _read(self, stream: Stream, pipe: int) -> bool:
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._pipes.remove((stream, pipe))
            self._ready.unregister(pipe)
            self._loop.remove_reader(pipe)
            os.close(pipe)
            return False
        text = self._decoders[stream].decode(data)
        self._emit(stream, text, len(data))
        return True
