"""Files that a person or a program gives to a run, read from wherever they lie; never more of one than a run may take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

from atlas.kernel.errors import Invalid, NotFound
from atlas.kernel.media import MAX_BYTES


def read_given(files: Iterable[str | Path | bytes]) -> list[tuple[str, bytes]]:
    """Each file's name and bytes; a path is read, bytes are taken as they are and have no name."""
    if isinstance(files, str | bytes | PurePath):
        raise Invalid(
            "files is a list of paths or bytes", hint="Put a single one into a list.", code="files_not_a_list"
        )
    return [("", one) if isinstance(one, bytes) else (Path(one).name, _read(Path(one))) for one in files]


def _read(path: Path) -> bytes:
    """The file's bytes, or just enough of them to see that they are too many."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", code="file_not_found") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Invalid(f"{path} cannot be read: {reason}", code="file_unreadable") from None
