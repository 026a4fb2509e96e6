"""The distribution without extras is enough: an environment that holds nothing but the core dependencies runs an agent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import atlas


def core_distributions() -> list[Distribution]:
    """Everything that installing atlas-agents without extras brings along."""
    found: dict[str, Distribution] = {}
    pending = ["atlas-agents"]
    while pending:
        name = pending.pop()
        for requirement in distribution(name).requires or []:
            text, _, marker = requirement.partition(";")
            match = re.match(r"[A-Za-z0-9._-]+", text)
            if match and "extra ==" not in marker and match[0].lower() not in found:
                try:
                    found[match[0].lower()] = distribution(match[0])
                except PackageNotFoundError:
                    continue  # its marker is for another Python or another system
                pending.append(match[0])
    return list(found.values())


def test_an_environment_with_the_core_dependencies_alone_runs_an_agent(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "atlas").symlink_to(Path(atlas.__file__).parent)
    names = {package.metadata["Name"].lower() for package in core_distributions()}
    assert not names & {"psycopg", "fastapi", "ray", "textual", "numpy", "pytest"}
    for package in core_distributions():
        for file in package.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(package.locate_file(top))))

    def run(*words: str) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(packages),
            "PYTHONNOUSERSITE": "1",
        }
        done = subprocess.run(
            [_bare_python(), "-S", "-m", "atlas", *words],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("new", "--vault", "vault")
    report = json.loads(run("run", "summarizer", "--input", '{"text": "one two three"}', "--vault", "vault", "--json"))
    assert report["state"] == "succeeded"
    assert report["output"] == {"summary": "one two three", "token_count": 3}


def _bare_python() -> str:
    """The interpreter behind the virtual environment; with -S it sees no installed package at all."""
    return getattr(sys, "_base_executable", sys.executable)
