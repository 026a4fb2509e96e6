"""New vaults and new agents from the templates that ship with Atlas; never over a file that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from atlas.kernel.contract import NAME_PATTERN, suggest_name
from atlas.kernel.errors import Conflict, Invalid, NotFound, Unavailable
from atlas.vault.folder import CONFIG_FILE, FolderVault
from atlas.vault.suggest import did_you_mean

_SUFFIX = ".tmpl"
_NOT_AGENTS = "vault"


def templates() -> list[str]:
    """The names of the templates for agents, sorted."""
    return sorted(entry.name for entry in _home().iterdir() if entry.is_dir() and entry.name != _NOT_AGENTS)


def new_vault(path: Path) -> FolderVault:
    """A vault in `path` with its configuration and no agents; Conflict when it is one already."""
    vault = FolderVault(path)
    if (path / CONFIG_FILE).exists():
        raise Conflict(f"{path} is a vault already", hint="choose another folder, or use it as it is", code="exists")
    files = {name: data for name, data in _template(_NOT_AGENTS, {}) if not (path / name).exists()}
    try:
        (path / "agents").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{path} cannot be created: {error.strerror}", code="vault_unwritable") from error
    # The configuration comes last: it makes the folder a vault, so half a vault is none.
    for name in sorted(files, key=lambda name: name == CONFIG_FILE):
        vault.write(name, files[name], expect=None)
    return vault


def new_agent(vault: FolderVault, name: str, template: str = "python") -> Path:
    """The folder of a new agent made from a template; Conflict when the agent or a file of it exists."""
    vault.require()
    if not re.fullmatch(NAME_PATTERN, name):
        guess = suggest_name(name)
        hint = f"did you mean {guess}?" if guess else "use lower-case letters, digits, - and _"
        raise Invalid(f"{name!r} is not a name for an agent", hint=hint, code="bad_name")
    if template not in templates():
        hint = did_you_mean(template, templates()) or f"the templates are {', '.join(templates())}"
        raise NotFound(f"there is no template {template}", hint=hint)
    folder = vault.root / "agents" / name
    files = dict(_template(template, {"name": name}))
    existing = [path for path in files if (folder / path).exists()]
    if existing:
        message = f"the agent {name} exists already: {', '.join(existing)}"
        raise Conflict(message, hint="choose another name, or edit what is there", code="exists")
    # The contract comes last: it makes the folder an agent, so half an agent is none.
    for path in sorted(files, key=lambda path: path == "agent.yaml"):
        vault.write(f"agents/{name}/{path}", files[path], expect=None)
    return folder


def _home() -> Traversable:
    return resources.files("atlas.vault") / "templates"


def _template(name: str, values: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Path and content of each file of a template, with {{key}} replaced by its value."""
    for path, file in _files(_home() / name, ""):
        text = file.read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace("{{" + key + "}}", value)
        yield path.removesuffix(_SUFFIX), text.encode()


def _files(folder: Traversable, above: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{above}{entry.name}", entry
