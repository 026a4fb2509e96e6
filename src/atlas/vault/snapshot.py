"""What a run pins of an agent's folder: its code and contract, by content.

What people keep writing while a run goes on (persona, memory, journal, ...) is left out, so that it takes
effect without a new version. Only regular files inside the folder count; a link that leads out is refused,
because the snapshot would then say nothing about what runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from atlas.kernel.errors import Invalid, NotFound, Problem, Unavailable

MAX_FILES = 5_000
MAX_TOTAL_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 32

LIVE = frozenset({"evals", "goal.md", "inbox", "journal", "log", "mandates.yaml", "memory", "persona", "raw", "wiki"})
"""Names at the top of an agent's folder that people and the runtime keep writing."""


def pinned_files(folder: Path, live: frozenset[str] = LIVE) -> dict[str, str]:
    """Relative path -> SHA-256 of every file that a run pins, in the order of the paths; all but the `live` ones."""
    total = 0
    found: dict[str, str] = {}
    try:
        for path, file, size in _walk(str(folder), "", folder, live):
            found[path] = file
            total += size
            if len(found) > MAX_FILES:
                raise _refused("snapshot_too_many", f"an agent has at most {MAX_FILES:,} files", folder)
            if total > MAX_TOTAL_BYTES:
                raise _refused("snapshot_too_large", f"an agent has at most {MAX_TOTAL_BYTES // 2**20} MiB", folder)
        return {path: _sha256(found[path]) for path in sorted(found)}
    except OSError as error:
        raise _unreadable(folder, error) from error


def snapshot_digest(files: Mapping[str, str]) -> str:
    """The name of a snapshot: it changes when a path or the content of a file changes, and never else."""
    return content_hash(msgspec.json.encode(dict(sorted(files.items()))))


def content_hash(data: bytes) -> str:
    """The SHA-256 of `data`, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_pinned(folder: Path, path: str, live: frozenset[str] = LIVE) -> bytes:
    """The bytes of one file that `pinned_files` lists."""
    parts = safe_parts(path)
    if parts[0] in live or any(_is_ignored(part) for part in parts):
        raise NotFound(f"{path} is not part of the agent's snapshot")
    try:
        real = folder.resolve(strict=True)
        return _inside(real, real.joinpath(*parts)).read_bytes()
    except OSError as error:
        raise _unreadable(folder / path, error) from error


def safe_parts(path: str) -> tuple[str, ...]:
    """The names of a relative path that cannot lead out of its folder; Invalid for any other."""
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise Invalid(f"{path!r} is not a path inside the folder", code="unsafe_path")
    return parts


def _walk(folder: str, prefix: str, root: Path, live: frozenset[str], depth: int = 1) -> Iterator[tuple[str, str, int]]:
    """Path below `root`, real place and size of each file in `folder`; the order is that of the disk."""
    if depth > MAX_DEPTH:
        raise _refused("snapshot_too_deep", f"an agent's folders are at most {MAX_DEPTH} deep", folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_ignored(entry.name) or (depth == 1 and entry.name in live):
                continue
            path = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{path}/", root, live, depth + 1)
            elif entry.is_symlink():
                real = _inside(root.resolve(strict=True), Path(entry.path))
                yield _plain(path, entry.path), str(real), entry.stat().st_size
            elif entry.is_file():
                yield _plain(path, entry.path), entry.path, entry.stat().st_size


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _plain(path: str, file: str) -> str:
    """The path, if it can be written down."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _refused("snapshot_name", "the name of a file is not UTF-8", file) from None
    safe_parts(path)
    return path


def _inside(root: Path, file: Path) -> Path:
    """The regular file that `file` is or links to, if it lies in `root`."""
    try:
        real = file.resolve(strict=True)
    except (FileNotFoundError, RuntimeError):
        raise _refused("snapshot_symlink", "a link leads nowhere", file) from None
    if not real.is_relative_to(root):
        raise _refused("snapshot_symlink", "a link leads out of the agent's folder", file)
    if not real.is_file():
        raise _refused("snapshot_symlink", "a link leads to something that is not a file", file)
    return real


def _sha256(file: str) -> str:
    with open(file, "rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refused(code: str, message: str, path: Path | str) -> Invalid:
    shown = os.fsencode(path).decode(errors="replace")
    hint = "move what is not code elsewhere, for example under wiki/" if "too" in code else "replace it by a plain file"
    return Invalid(message, problems=(Problem(code, message, shown, hint=hint),), code=code)


def _unreadable(path: Path, error: OSError) -> NotFound | Unavailable:
    shown = os.fsencode(path).decode(errors="replace")
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{shown} does not exist")
    return Unavailable(f"{shown} cannot be read: {error.strerror}", code="vault_unreadable")
