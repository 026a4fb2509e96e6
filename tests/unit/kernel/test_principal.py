"""A principal has one spelling; whatever looks like another one is refused and never repaired in silence."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.errors import Invalid
from atlas.kernel.principal import check_principal


@pytest.mark.parametrize("name", ["owner", "a", "ann@example.org", "team/bot-1", "svc:ci", "a.b_c+d", "9lives"])
def test_plain_names_are_principals(name: str) -> None:
    assert check_principal(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Owner",
        "OWNER",
        "owner ",
        " owner",
        "owner\n",
        "owner\t",
        "\u03bfwner",  # Greek omicron
        "\u043ewner",  # Cyrillic o
        "\uff4fwner",  # full width o
        "own\u200ber",  # a space of no width
        "owner\u0000",
        "o\u0301wner",
        unicodedata.normalize("NFC", "o\u0301wner"),
        "own\u00e9r",
        "owne\u0433",
        "\u202eowner",
        "-owner",
        "x" * 129,
    ],
)
def test_anything_that_could_be_taken_for_another_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_principal(name)
    assert caught.value.reason == "principal_invalid"
    assert caught.value.message.isascii()


@pytest.mark.parametrize("name", ["Owner", " owner", "\uff4fwner"])
def test_the_right_spelling_is_suggested(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_principal(name)
    assert "Did you mean owner?" in caught.value.hint


@given(st.text())
def test_accepted_names_are_their_own_canonical_form(name: str) -> None:
    try:
        check_principal(name)
    except Invalid:
        return
    assert name == name.casefold() == unicodedata.normalize("NFKC", name) == name.strip()
    assert name.isascii()
