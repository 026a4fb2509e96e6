"""Principals: who is asking, spelled in exactly one way.

Budgets, sessions, keys, grants and the inbox are kept by the principal's text. Two spellings that a person takes for
one name (another case, a look-alike letter, a space at the end) must never be two principals, so there is only one
spelling that is accepted, and whatever differs from it is refused and never repaired in silence.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from atlas.kernel.errors import Invalid, PolicyRefused

OWNER: Final = "owner"
"""Whoever the vault belongs to."""

INSIDE: Final = "ATLAS_RUN_ID"
"""The environment variable that every process carries which acts in a run's name."""

PRINCIPAL_PATTERN: Final = "^[a-z0-9][a-z0-9._@+:/-]{0,127}$"
_PRINCIPAL: Final = re.compile(r"[a-z0-9][a-z0-9._@+:/-]{0,127}")


def check_principal(text: str) -> str:
    """The text, when it is a principal in its one spelling; Invalid, with that spelling if there is one, otherwise."""
    if _PRINCIPAL.fullmatch(text):
        return text
    meant = _plain(text)
    raise Invalid(
        f"{text!a:.160} is not a principal",
        hint=(f"Did you mean {meant}? " if meant else "")
        + "Use lower-case letters a to z, digits and . _ @ + : / -, beginning with a letter or digit; at most 128.",
        code="principal_invalid",
    )


def may_see(principal: str, other: str) -> bool:
    """Whether what `other` asked for is this principal's business: its own, or anybody's for the vault's owner."""
    return principal in (OWNER, other)


def refuse_inside(run_id: str) -> None:
    """Refuses whoever acts in a run's name: no run, and nothing it started, decides what a person is asked."""
    if run_id:
        raise PolicyRefused(
            "this process acts in a run's name, and what a person is asked only a person decides",
            hint=f"Answer from a terminal of your own; {INSIDE} is set here.",
            code="inside_a_run",
        )


def _plain(text: str) -> str:
    """The likely right spelling, where only case, width or spaces are wrong; a look-alike letter has none."""
    plain = unicodedata.normalize("NFKC", text).casefold().strip()
    return plain if _PRINCIPAL.fullmatch(plain) else ""
