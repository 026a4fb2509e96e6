"""`atlas secrets`: values come in unseen, and never come out."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from atlas.kernel.errors import Invalid


def test_a_value_is_read_from_standard_input_and_not_shown(atlas: Any, program: Any) -> None:
    result = atlas("secrets", "set", "API_TOKEN", stdin="tok-1234567\n")
    assert result.exit_code == 0
    assert program.kept.get("API_TOKEN") == "tok-1234567"
    assert "tok-1234567" not in result.output
    assert "1234567" not in result.stderr


def test_only_the_last_line_break_is_taken_off(atlas: Any, program: Any) -> None:
    atlas("secrets", "set", "PEM", stdin="line one\nline two\n\n")
    assert program.kept.get("PEM") == "line one\nline two\n"


def test_a_value_on_the_command_line_is_not_accepted(atlas: Any, program: Any) -> None:
    result = atlas("secrets", "set", "API_TOKEN", "tok-1234567")
    assert result.exit_code == 2
    assert program.kept.names() == ()


def test_a_bad_name_is_refused_before_anything_is_read(atlas: Any) -> None:
    result = atlas("secrets", "set", "not a name", stdin="tok-1234567")
    assert result.exit_code == 2
    assert "tok-1234567" not in result.output


def test_a_short_value_is_refused_and_not_shown(atlas: Any) -> None:
    result = atlas("secrets", "set", "PIN", "--json", stdin="12z45")
    assert result.exit_code == 2
    assert "12z45" not in result.output
    assert json.loads(result.stdout)["error"]["code"] == "secret_too_short"


def test_the_list_has_names_and_places_alone(atlas: Any, program: Any) -> None:
    program.kept.set("B_KEY", "value two")
    program.kept.set("A_KEY", "value one")
    assert [line.split() for line in atlas("secrets", "list").stdout.splitlines()] == [
        ["A_KEY", "memory"],
        ["B_KEY", "memory"],
    ]
    listed = json.loads(atlas("secrets", "list", "--json").stdout)
    assert listed == {"secrets": [{"name": "A_KEY", "source": "memory"}, {"name": "B_KEY", "source": "memory"}]}


def test_a_removed_secret_is_gone_and_an_unknown_one_is_not_found(atlas: Any, program: Any) -> None:
    program.kept.set("A_KEY", "value one")
    assert atlas("secrets", "rm", "A_KEY").exit_code == 0
    assert program.kept.names() == ()
    assert atlas("secrets", "rm", "A_KEY").exit_code == 2


class Proof(msgspec.Struct, frozen=True):
    ok: bool
    found: int
    where: tuple[str, ...] = ()


@pytest.mark.parametrize("ok", [True, False])
def test_the_proof_prints_its_numbers_and_its_exit_code_tells(
    atlas: Any, monkeypatch: pytest.MonkeyPatch, ok: bool
) -> None:
    made = ModuleType("atlas.testing.canary")
    made.main = lambda report: Proof(ok, 0 if ok else 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "atlas.testing.canary", made)
    result = atlas("secrets", "prove", "--json")
    assert json.loads(result.stdout) == {"ok": ok, "found": 0 if ok else 2, "where": []}
    assert result.exit_code == (0 if ok else 5)
    assert "found" in atlas("secrets", "prove").stdout


def test_an_answer_says_who_gives_it(atlas: Any) -> None:
    assert atlas("inbox", "--as", "ann").exit_code == 0


def test_the_details_of_a_fault_hold_no_secret(atlas: Any, program: Any) -> None:
    program.kept.set("A_KEY", "tok-1234567")
    program.trouble = RuntimeError("it was tok-1234567")
    assert atlas("runs").exit_code == 5
    (details,) = (program.folder / ".atlas" / "faults").iterdir()
    assert "it was [secret:A_KEY]" in details.read_text()


def test_the_details_of_a_fault_say_less_when_the_secrets_cannot_be_read(atlas: Any, program: Any) -> None:
    program.kept = None
    program.trouble = RuntimeError("it was tok-1234567")

    def refuse(vault: str | None) -> None:
        raise Invalid("the file of secrets is open to others")

    program.secrets = refuse
    assert atlas("runs").exit_code == 5
    (details,) = (program.folder / ".atlas" / "faults").iterdir()
    assert "tok-1234567" not in details.read_text()
    assert "RuntimeError" in details.read_text()
