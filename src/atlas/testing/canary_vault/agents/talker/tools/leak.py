"""Tools that let the secrets they are given slip."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from atlas import tool
from atlas.testing.canary_forms import flood

_ALL = ("API_TOKEN", "ODD_KEY", "PIN_CODE", "PEM_KEY")


@tool(effect="read_only", secrets=_ALL)
def say(how: str, secrets: dict[str, str]) -> str:
    """Says every secret."""
    text = "\n".join(flood(value) for value in secrets.values())
    match how:
        case "print":
            sys.stdout.write(text + "\n")
            subprocess.run(["/bin/cat"], input=text.encode(), check=True)
            return "printed"
        case "large":
            return "a" * 100_000 + text + "b" * 100_000
        case "throw":
            raise ValueError("x" * (1_990 - len(secrets["API_TOKEN"]) // 2) + secrets["API_TOKEN"] + text)
        case "names":
            with tempfile.TemporaryDirectory() as folder:
                for value in secrets.values():
                    (Path(folder) / value.replace("/", "_").replace("\n", "_")[:200]).touch()
                    (Path(folder) / value.encode().hex()[:200]).touch()
                return "\n".join(sorted(os.listdir(folder)))
        case "crash":
            os.write(2, text.encode())
            os._exit(3)
    return text + "\n".join(os.environ.values())
