"""Sets up the environment of the peers, apart from ours so that neither side carries the other's packages."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv-bench"
CONSTRAINTS = Path(__file__).resolve().with_name("constraints.txt")
PACKAGES = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langchain",
    "langchain-openai",
    "pydantic-ai-slim[openai]",
    "openai-agents",
    "agno",
)


def python_of_peer() -> Path:
    """The peers' interpreter, installed as pinned; repeating it costs nothing."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".packages"
    pins = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == pins:
        return python
    print(
        f"installing the peers, pinned in bench/constraints.txt, into {ENVIRONMENT.name} (a minute or so)",
        file=sys.stderr,
    )
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    # Neither version control nor the linter should look at it.
    (ENVIRONMENT / ".gitignore").write_text("*\n")
    pip = [str(python), "-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-c", str(CONSTRAINTS), *PACKAGES], check=True)
    stamp.write_text(pins)
    return python


def pinned(package: str) -> str:
    """The pinned version of one package."""
    for line in CONSTRAINTS.read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    raise SystemExit(f"{package} is not pinned in {CONSTRAINTS.name}")
