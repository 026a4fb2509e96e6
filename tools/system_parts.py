"""Installs the programs that tests need from the system and Python packages cannot bring.

Does nothing when all are there. Installs with apt-get where that is possible without asking anybody (as root, or
with sudo that needs no password). Otherwise it says what to install; under CI that is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PARTS = {"strace": "strace"}  # program: Debian package. strace records writes for the power-loss test.


def main() -> int:
    """0 when every part is there or may be missing, 1 when CI lacks one."""
    absent = [program for program in PARTS if shutil.which(program) is None]
    if absent:
        install([PARTS[program] for program in absent])
        absent = [program for program in absent if shutil.which(program) is None]
    if not absent:
        return 0
    packages = " ".join(PARTS[program] for program in absent)
    print(f"      missing: {', '.join(absent)}. The tests that need it are skipped.", file=sys.stderr)
    print(f"      To run them, install it, for example: sudo apt-get install {packages}", file=sys.stderr)
    return 1 if os.environ.get("CI") else 0


def install(packages: list[str]) -> None:
    """Tries apt-get; leaves it to the caller to look whether it helped."""
    prefix = privilege()
    if prefix is None or shutil.which("apt-get") is None:
        return
    print(f"      installing {' '.join(packages)} with apt-get", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(
            [*prefix, "apt-get", "-qq", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(f"      apt-get {arguments[0]} failed:\n{done.stderr.strip()}", file=sys.stderr)


def privilege() -> list[str] | None:
    """What to put before a command that needs root; None when nothing would do without a password."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


if __name__ == "__main__":
    sys.exit(main())
