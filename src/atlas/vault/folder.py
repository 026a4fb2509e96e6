"""The vault as a folder: finds it, reads contracts and configuration, pins agents, writes files.

The default adapter of the `Vault` port. No path that a name or a link could make leads out of the vault, except
through the vault's own root, which may be a link.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from atlas.kernel.config import Config
from atlas.kernel.contract import AgentFile, Contract, Finding
from atlas.kernel.errors import Invalid, NotFound, Problem, Unavailable
from atlas.kernel.port import SHARED, Snapshot
from atlas.vault.atomic import write_file
from atlas.vault.load import load
from atlas.vault.snapshot import content_hash, pinned_files, read_pinned, safe_parts, snapshot_digest
from atlas.vault.source import MAX_BYTES
from atlas.vault.suggest import did_you_mean

CONFIG_FILE = "atlas.config.yaml"
CONTRACT_FILE = "agent.yaml"
RUNTIME_FOLDER = ".atlas"
TOOLS_FOLDER = "tools"


def find_vault(explicit: str | Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path:
    """The vault that is meant: the option, ATLAS_VAULT, the folder here or above with a configuration, or ~/atlas."""
    named = str(explicit or environ.get("ATLAS_VAULT") or "")
    if named:
        in_home = named == "~" or named.startswith("~/")
        return Path(os.path.abspath(home / named[2:] if in_home else cwd / named))
    above = (folder for folder in (cwd, *cwd.parents) if (folder / CONFIG_FILE).is_file())
    return next(above, home / "atlas")


class FolderVault:
    """The files of one vault. Holds no state: every call reads what is there now."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def require(self) -> None:
        """Raises NotFound when there is no such folder."""
        if not self.root.is_dir():
            hint = f"create it with: atlas new --vault {shlex.quote(str(self.root))}; or name yours by --vault"
            raise NotFound(f"there is no vault at {self.root}", hint=hint)

    def config(self) -> Config:
        """The platform configuration; the defaults when there is no file."""
        self.require()
        path = self.root / CONFIG_FILE
        try:
            return load(_read_text(path), Config, path=str(path))
        except NotFound:
            return Config()

    def agents(self) -> list[str]:
        """The names of all agents, sorted."""
        try:
            names = [entry.name for entry in (self.root / "agents").iterdir() if os.path.isfile(entry / CONTRACT_FILE)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            message = f"{self.root / 'agents'} cannot be read: {error.strerror}"
            raise Unavailable(message, code="vault_unreadable") from error
        return sorted(name for name in names if not name.startswith("."))

    def contract(self, name: str) -> Contract:
        """The agent's contract with its runtime resolved; NotFound, or Invalid with every problem of the file."""
        return _load_contract(self._folder(name), name)

    def snapshot(self, name: str) -> Snapshot:
        """What a run of the agent would pin now, the vault's own tools included; Invalid when its contract is."""
        folder = self._folder(name)
        files = pinned_files(folder)
        shared = self._shared()
        if shared and _load_contract(folder, name).runtime == "prompt":
            files = _with_shared(files, shared, folder)
        digest = snapshot_digest(files)
        if not self._place_of(digest).is_dir():
            # A placed snapshot had a valid contract. A new one is checked here, where problems show the file that
            # people edit and not a copy of it.
            _load_contract(folder, name)
        return Snapshot(digest, files)

    def read(self, name: str, path: str) -> bytes:
        """One file of an agent's snapshot."""
        shared = path.removeprefix(f"{SHARED}/{TOOLS_FOLDER}/")
        if shared != path:
            return read_pinned(self.root / TOOLS_FOLDER, shared, live=frozenset())
        return read_pinned(self._folder(name), path)

    def placed(self, digest: str) -> str | None:
        """The folder in which a snapshot's files lie complete and unchanged, if they do."""
        folder = self._place_of(digest)
        try:
            return str(folder) if snapshot_digest(pinned_files(folder)) == digest else None
        except (NotFound, Invalid):
            return None

    def place(self, digest: str, files: Mapping[str, bytes]) -> str:
        """Puts a snapshot's files into a folder of their own, all or nothing."""
        import shutil

        if snapshot_digest({path: content_hash(data) for path, data in files.items()}) != digest:
            raise Invalid("the files are not those of the snapshot", code="snapshot_mismatch")
        target = self._place_of(digest)
        temporary = target.with_name(f".{os.urandom(8).hex()}")
        try:
            temporary.mkdir(parents=True)
            for path, data in files.items():
                file = temporary.joinpath(*safe_parts(path))
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                file.chmod(0o444)
            self._move_into_place(temporary, target, digest)
        except OSError as error:
            raise Unavailable(f"{target} cannot be written: {error.strerror}", code="vault_unwritable") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return str(target)

    def contract_in(self, folder: str) -> Contract:
        """The contract of a placed snapshot."""
        return _load_contract(Path(folder), None)

    def read_file(self, path: str) -> bytes:
        """The content of a file of the vault, given by its path from the vault's root."""
        safe_parts(path)
        self._require_inside(path)
        place = f"{self.root}/{path}"
        try:
            with open(place, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise NotFound(f"there is no {path} in the vault") from None
        except OSError as error:
            raise Unavailable(f"{place} cannot be read: {error.strerror}", code="vault_unreadable") from error

    def write(self, path: str, data: bytes, *, expect: str | None) -> str:
        """Durably replaces the content whose hash is `expect` (None: there is no file) and returns the new hash.

        Conflict, with nothing changed, when the file is not what was expected: somebody edited it meanwhile.
        """
        if safe_parts(path)[0] == RUNTIME_FOLDER:
            raise Invalid(f"{path} belongs to the runtime", code="unsafe_path")
        lock = self.root / RUNTIME_FOLDER / "write.lock"
        return write_file(self.root, path, data, expect=expect, lock=lock)

    def _folder(self, name: str) -> Path:
        folder = self.root / "agents" / name
        if not re.fullmatch(r"[^/\0.][^/\0]*", name) or not os.path.isfile(folder / CONTRACT_FILE):
            known = self.agents()
            hint = did_you_mean(name, known) or (f"the agents are {', '.join(known[:20])}" if known else "")
            raise NotFound(f"there is no agent {name} in {self.root}", hint=hint)
        self._require_inside(f"agents/{name}/{CONTRACT_FILE}")
        return folder

    def _shared(self) -> dict[str, str]:
        """The files of the tools that the vault shares with its prompt agents, by their path below `tools`."""
        folder = self.root / TOOLS_FOLDER
        if not folder.is_dir():
            return {}
        self._require_inside(TOOLS_FOLDER)
        return pinned_files(folder, live=frozenset())

    def _require_inside(self, path: str) -> None:
        """Refuses a path, given from the root, that leads out of it; one without links on its way cannot."""
        # With plain texts, because every turn asks: paths as objects would be most of the cost.
        root = str(self.root)
        steps = itertools.accumulate(path.split("/"), "{}/{}".format, initial=root)
        next(steps)  # the root itself may be a link
        if not any(map(os.path.islink, steps)):
            return
        if not f"{os.path.realpath(f'{root}/{path}')}{os.sep}".startswith(f"{os.path.realpath(root)}{os.sep}"):
            raise Invalid(f"{root}/{path} is a link that leads out of the vault", code="unsafe_path")

    def _place_of(self, digest: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise Invalid(f"{digest!r} is not the digest of a snapshot", code="unsafe_path")
        return self.root / RUNTIME_FOLDER / "snapshots" / digest

    def _move_into_place(self, temporary: Path, target: Path, digest: str) -> None:
        """Renames the complete folder; one that is there already stays if it is sound and goes if it is not."""
        import shutil

        for _ in range(10):
            with contextlib.suppress(OSError):
                temporary.rename(target)
                return
            if self.placed(digest) is not None:
                return
            with contextlib.suppress(FileNotFoundError):
                damaged = target.rename(target.with_name(f".{os.urandom(8).hex()}"))
                shutil.rmtree(damaged, ignore_errors=True)
        temporary.rename(target)


def _load_contract(folder: Path, name: str | None) -> Contract:
    """The contract in `folder`, which must be called `name` where one is given."""
    path = folder / CONTRACT_FILE
    has_code = (folder / "agent.py").is_file()

    def rules(file: AgentFile) -> Iterator[Finding]:
        yield from file.findings()
        yield from _folder_findings(file.agent, name, has_code)

    contract = load(_read_text(path), AgentFile, path=str(path), rules=rules).agent
    runtime = contract.runtime or ("python" if has_code else "prompt")
    return msgspec.structs.replace(contract, runtime=runtime)


def _with_shared(files: dict[str, str], shared: dict[str, str], folder: Path) -> dict[str, str]:
    if any(path.startswith(f"{SHARED}/") for path in files):
        raise Invalid(
            f"{folder / SHARED} has a name that is kept for what the vault shares",
            hint="Rename that folder.",
            code="snapshot_name",
        )
    return {**files, **{f"{SHARED}/{TOOLS_FOLDER}/{path}": digest for path, digest in shared.items()}}


def _folder_findings(contract: Contract, name: str | None, has_code: bool) -> Iterable[Finding]:
    if name is not None and contract.name != name:
        message = f"the agent is called {contract.name}, but its folder {name}"
        yield Finding(("agent", "name"), "name_mismatch", message, "give both the same name")
    if contract.runtime == "python" and not has_code:
        message = "runtime: python needs an agent.py beside this file"
        yield Finding(("agent", "runtime"), "missing_code", message, "write agent.py or choose another runtime")


def _read_text(path: Path) -> bytes:
    """The file's bytes, or just enough of them for the loader to see that they are too many."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no {path}") from None
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise Invalid(message, problems=(Problem("unreadable", message, str(path)),), code="unreadable") from error
