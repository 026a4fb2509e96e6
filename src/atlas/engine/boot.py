"""Starts a worker process: ties its life to the driver's, then loads this very package whatever else is installed.

Run by path, never imported. Only the standard library above `main`, so that dying with the driver is settled
before anything slow begins.
"""

from __future__ import annotations

import os
import signal
import sys


def die_with_driver(driver: int, life: int) -> None:
    """From here on, when the driver dies, this process and its whole group die, whatever they are doing.

    `life` is the read end of a pipe whose write end only the driver holds. On Linux the kernel itself sends SIGKILL
    to the group when the pipe breaks, so neither a busy interpreter nor a stopped process delays it, and processes
    that the agent's code started die too.
    """
    try:
        _kill_on_hangup(life)
    except (AttributeError, OSError):  # not Linux
        _watch(life)
    _kill_on_parent_death()
    # The driver may have died before all this was in place; then this process has another parent by now.
    if os.getppid() != driver:
        os._exit(1)


def _kill_on_hangup(life: int) -> None:
    import fcntl

    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _kill_on_parent_death() -> None:
    """A second guard, for a driver whose forked child keeps the pipe open."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _watch(life: int) -> None:
    import threading

    def wait() -> None:
        while os.read(life, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="atlas-life", daemon=True).start()


def _load_package() -> None:
    """Makes `import atlas` mean the package this file is part of, without touching sys.path."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = spec_from_file_location("atlas", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules["atlas"] = package
    spec.loader.exec_module(package)


def main() -> None:
    """The worker's life, from its first instruction: boot.py SOCKET LIFE DRIVER."""
    sock, life, driver = (int(word) for word in sys.argv[1:4])
    os.set_inheritable(sock, False)
    os.set_inheritable(life, False)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # never take along a group that others share
    die_with_driver(driver, life)
    sys.argv = ["agent.py"]
    _load_package()
    from atlas.engine.worker import serve

    serve(sock)


if __name__ == "__main__":
    main()
