"""The driver's end of a process that it started: frames both ways, what it prints, and its end, all as callbacks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from atlas.engine import process
from atlas.engine.capture import Capture, Stream
from atlas.engine.launch import Launched, on_exit
from atlas.engine.wire import FRAME_LIMIT, Frames
from atlas.kernel.errors import Fault

_READ: Final = 64 * 1024


class Outgoing:
    """Bytes on their way into an open file that does not block: written now, or as soon as the other end takes them."""

    def __init__(self, file: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = file
        self._unsent = b""

    def post(self, data: bytes) -> None:
        """Sends it after all that was posted before."""
        if not self._unsent:
            try:
                sent = os.write(self._file, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the other end is dying; its exit is noticed on its own
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._file, self._writable)
        self._unsent += data

    def stop(self) -> None:
        """Sends no more: from here on the file may be closed, and its number be that of another one."""
        self._loop.remove_writer(self._file)
        self._file = -1

    def _writable(self) -> None:
        try:
            sent = os.write(self._file, self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._file)


class Link:
    """A process that can be told things. `dead` is done once it is reaped and has said its last.

    `heard` gets each frame it sends and raises Fault for one that makes no sense, which is its end; `printed` what it
    prints, always before a frame that was sent after it; `silent` is called once it can say no more, and what it does
    about a process that lives on is its own affair; `exited` gets the exit status, once, last of all.
    """

    def __init__(
        self,
        launched: Launched,
        heard: Callable[[bytes], None],
        printed: Callable[[Stream, str, int], None],
        silent: Callable[[], None],
        exited: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._popen, self._sock, self._life, stdout, stderr = launched
        self._heard = heard
        self._silent = silent
        self._exited = exited
        self._frames = Frames(FRAME_LIMIT)
        self._outgoing = Outgoing(self._sock.fileno())
        self.is_silent = False
        self.fault: Fault | None = None
        self.dead: asyncio.Future[None] = self._loop.create_future()
        # These two open files and may fail, so they come before anything listens.
        self.process = process.process_of(self._popen.pid)
        on_exit(self._popen, self._ended)
        self._capture = Capture(stdout, stderr, printed)
        self._loop.add_reader(self._sock, self._readable)

    def post(self, data: bytes) -> None:
        """Sends, now or as soon as the socket takes it."""
        self._outgoing.post(data)

    def collect(self) -> None:
        """Has `printed` told of everything that was printed by now."""
        self._capture.collect()

    def start_anew(self) -> None:
        """Has `printed` told of everything up to now, and counts what is printed from here on by itself."""
        self._capture.collect()
        self._capture.reset()

    def kill(self) -> None:
        """Ends it and its group; `dead` tells when it is over."""
        # Not reaped before `_ended`, so the pid is its own until then.
        if not self.dead.done():
            process.kill_group(self.process.pid)

    async def killed(self) -> None:
        """Ends it and everything it started; returns when none of it runs."""
        if not self.dead.done():
            await process.kill(self.process)
        await asyncio.shield(self.dead)

    def _readable(self) -> None:
        # Text in the pipes is older than the message that woke us, so it goes first.
        self._capture.collect()
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._hear(data)
        else:
            self._stop_hearing()

    def _hear(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._heard(body)
        except Fault as fault:
            self.fault = fault
            self._stop_hearing()
            self.kill()

    def _ended(self) -> None:
        self.kill()  # what it left running dies with it
        status = self._popen.wait()
        self._capture.collect()
        while not self.is_silent:
            try:
                data = self._sock.recv(_READ)
            except OSError:
                break
            if not data:
                break
            self._hear(data)
        self._stop_hearing()
        self._outgoing.stop()
        self._sock.close()
        self._capture.close()
        os.close(self._life)
        self.dead.set_result(None)
        self._exited(status)

    def _stop_hearing(self) -> None:
        if not self.is_silent:
            self.is_silent = True
            self._loop.remove_reader(self._sock)
            self._silent()
