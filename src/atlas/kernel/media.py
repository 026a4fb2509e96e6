"""Files that are given to a run as part of what is said: what each one is, what it weighs, and how it is named.

What a file is follows from its bytes, never from its name. Pictures and PDFs go to the model as they are and weigh a fixed
number of tokens, because no count of bytes tells what a provider makes of them; text is shown as text.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from atlas.kernel.errors import Invalid
from atlas.kernel.event import InputFile
from atlas.kernel.model import IMAGE_TOKENS

MAX_FILES: Final = 20
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024 * 3 // 4
"""The smaller of what the two wires take: 5 MiB as it is sent, which is four bytes for three."""
TEXT: Final = "text/plain"
PDF: Final = "application/pdf"
_NAME_LENGTH: Final = 80
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)
_EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    PDF: "pdf",
    TEXT: "txt",
}
_PAGE: Final = re.compile(rb"/Type\s*/Page\b")
_PAGE_BYTES: Final = 64 * 1024


class Given(msgspec.Struct, frozen=True):
    """A file as a turn has it: its handle and, of a text, as much of its beginning as could ever be shown."""

    file: InputFile
    handle: str
    head: str = ""

    @property
    def line(self) -> str:
        """As the model and people read it; the name is somebody else's text, so it stands in quotes that it cannot close."""
        name = self.file.name.replace('"', "'")
        return f'{self.handle} "{name}" ({self.file.media_type}, {self.file.size} bytes)'


def examine(name: str, data: bytes, number: int) -> InputFile:
    """What the file is; Invalid, saying why, when no model could be sent it. `number` names one that has no name."""
    media_type = media_type_of(data)
    shown = _clean(name) or f"file-{number}.{_EXTENSIONS.get(media_type, 'bin')}"
    if not data:
        raise Invalid(f"{shown} is empty", code="file_empty")
    if not media_type:
        raise Invalid(
            f"{shown} is neither a picture, nor a PDF, nor UTF-8 text",
            hint="PNG, JPEG, GIF and WebP pictures, PDFs and text can be given to an agent.",
            code="file_unknown_kind",
        )
    most = MAX_IMAGE_BYTES if media_type.startswith("image/") else MAX_BYTES
    if len(data) > most:
        raise Invalid(
            f"{shown} is larger than {most / 2**20:g} MiB, the most that a file of its kind may have",
            hint="Make it smaller, or put it where a tool of the agent can read it.",
            code="file_too_large",
        )
    return InputFile(hashlib.sha256(data).hexdigest(), media_type, shown, len(data), _tokens(media_type, data))


def media_type_of(data: bytes) -> str:
    """The media type that the bytes themselves show; nothing when it is none that a model can be sent."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    try:
        data.decode()
    except UnicodeDecodeError:
        return ""
    return "" if b"\0" in data else TEXT


def _tokens(media_type: str, data: bytes) -> int:
    """What it weighs beside its text: pages of a PDF may be hidden in it, so its size counts too."""
    if media_type == TEXT:
        return 0
    pages = max(len(_PAGE.findall(data)), -(-len(data) // _PAGE_BYTES)) if media_type == PDF else 1
    return IMAGE_TOKENS * pages


def _clean(name: str) -> str:
    """The last part of a path on one line: a name is somebody else's text."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join(one if one.isprintable() else " " for one in last)
    return " ".join(kept.split())[:_NAME_LENGTH]
