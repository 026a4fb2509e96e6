"""Mandates as files: revoking one in place, with everything else in the file left as its author wrote it."""

from __future__ import annotations

from atlas.kernel.errors import Conflict, Invalid, NotFound
from atlas.kernel.mandate import Mandate, MandateFile
from atlas.vault.folder import FolderVault
from atlas.vault.load import load
from atlas.vault.node import Mapping, Scalar, Sequence, parse
from atlas.vault.snapshot import content_hash
from atlas.vault.suggest import did_you_mean

MANDATE_FILE = "mandates.yaml"


def mandate_file(identifier: str) -> tuple[str, str]:
    """The file of a mandate and its id in it: `refunds` is the vault's, `mailer/refunds` the agent mailer's."""
    agent, _, own = identifier.rpartition("/")
    return (f"agents/{agent}/{MANDATE_FILE}" if agent else MANDATE_FILE), own


def read_mandates(vault: FolderVault, path: str) -> tuple[Mandate, ...]:
    """The mandates in a file; none when there is no file, Invalid when it cannot be read."""
    try:
        return load(vault.read_file(path), MandateFile, path=str(vault.root / path)).mandates
    except NotFound:
        return ()


def revoke(vault: FolderVault, identifier: str) -> str:
    """Writes `revoked: true` into the mandate and returns its file; it is void from the next effect on.

    NotFound when there is no such mandate, Conflict when it is revoked already or somebody saves the file meanwhile.
    """
    path, own = mandate_file(identifier)
    found = {mandate.id: mandate for mandate in read_mandates(vault, path)}
    if own not in found:
        raise NotFound(f"there is no mandate {identifier}", hint=did_you_mean(own, found))
    if found[own].revoked:
        raise Conflict(f"the mandate {identifier} is revoked already", code="already_revoked")
    data = vault.read_file(path)
    after = _revoked(data, own, str(vault.root / path))
    if not any(mandate.id == own and mandate.revoked for mandate in load(after, MandateFile, path=path).mandates):
        raise Invalid(f"{path} is written in a way that cannot be edited", hint="Write revoked: true into it yourself.")
    vault.write(path, after, expect=content_hash(data))
    return path


def _revoked(data: bytes, own: str, path: str) -> bytes:
    """The file with the key in front of the mandate's id, or with the value it has there changed."""
    document = parse(data, path)
    text = document.source.text
    for item in _items(document.root):
        keys = {key.text: (key, value) for key, value in item.entries}
        key, value = keys.get("id", (None, None))
        if key is None or not isinstance(value, Scalar) or value.text != own:
            continue
        if "revoked" in keys:
            _, written = keys["revoked"]
            length = len(written.text) if isinstance(written, Scalar) and written.plain else 0
            return f"{text[: written.at]}true{text[written.at + length :]}".encode()
        column = document.source.position(key.at)[1] - 1
        glue = ", " if item.flow else "\n" + " " * column
        return f"{text[: key.at]}revoked: true{glue}{text[key.at :]}".encode()
    return data


def _items(root: object) -> list[Mapping]:
    entries = {key.text: value for key, value in root.entries} if isinstance(root, Mapping) else {}
    mandates = entries.get("mandates")
    return [item for item in mandates.items if isinstance(item, Mapping)] if isinstance(mandates, Sequence) else []
