"""An `atlas` command as a person has it: on a terminal of its own, with keys to press and text that appears."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 60.0
CTRL_C = "\x03"
CTRL_D = "\x04"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Screen:
    """What a terminal shows, and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._raw = b""

    @property
    def text(self) -> str:
        """Everything that appeared so far, without colours and moving lines."""
        return _CONTROL.sub("", self._raw.decode(errors="replace"))

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self._master, keys.encode())

    def press_until(self, keys: str, text: str, times: int = 1) -> None:
        """Presses them, and again each time nothing happens, as one does with a machine that was busy just then."""
        deadline = time.monotonic() + PATIENCE_S
        while self.text.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} did not appear in:\n{self.text}"
            self.press(keys)
            while self._read(time.monotonic() + 0.5):
                pass

    def wait_for(self, text: str, times: int = 1) -> None:
        """Returns when the text has appeared, so many times."""
        deadline = time.monotonic() + PATIENCE_S
        while self.text.count(text) < times:
            assert self._read(deadline), f"{text!r} did not appear in:\n{self.text}"

    def wait_for_different(self, pattern: str, number: int) -> None:
        """Returns when so many different texts that fit the pattern have appeared."""
        deadline = time.monotonic() + PATIENCE_S
        while len(set(re.findall(pattern, self.text))) < number:
            assert self._read(deadline), f"{pattern!r} did not appear {number} times in:\n{self.text}"

    def wait_for_prompt(self, prompt: str = "\n> ") -> None:
        """Returns when the last thing on the screen is a prompt."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.text.endswith(prompt):
            assert self._read(deadline), f"there is no prompt {prompt!r} at the end of:\n{self.text}"

    def ended(self) -> int:
        """The exit code, once the process has ended and everything it wrote is here."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self._process.wait(PATIENCE_S)

    def _read(self, deadline: float) -> bool:
        """Takes in what comes next; False when nothing more will, or the time is over."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the other side open any more
            return False
        self._raw += data
        return bool(data)


@contextmanager
def on_screen(vault: Path, *words: str, **environ: str) -> Iterator[Screen]:
    """The command on a terminal; killed at the end of the block if it still runs."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x18\x00\xc8\x00\x00\x00\x00\x00")  # 24 rows, 200 columns
    process = subprocess.Popen(
        command(vault, *words),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **environ},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
    )
    os.close(slave)
    try:
        yield Screen(process, master)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)


def command(vault: Path, *words: str) -> list[str]:
    """The words that start `atlas` on a vault."""
    return [sys.executable, "-m", "atlas", *words, "--vault", str(vault)]
