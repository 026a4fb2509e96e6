"""The contract of the port `Secrets`, as cases that every adapter must pass, and one that keeps values in memory.

    @pytest.mark.parametrize("case", secrets.cases(), ids=lambda case: case.__name__)
    def test_my_secrets(case, tmp_path):
        case(lambda: MySecrets(tmp_path))

The factory opens the same store each time it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from atlas.kernel.errors import Invalid
from atlas.kernel.port import Secrets
from atlas.kernel.redact import check_name, check_value

Open: TypeAlias = Callable[[], Secrets]
Case: TypeAlias = Callable[[Open], None]

_VALUE: Final = 'pa ss"wörd\\\n-2'


class MemorySecrets:
    """Values that are gone with the process; for tests of agents."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self._values = values if values is not None else {}

    def get(self, name: str) -> str | None:
        """The value, or None."""
        value = self._values.get(check_name(name))
        return None if value is None else check_value(name, value)

    def names(self) -> tuple[str, ...]:
        """Every name that has a value, sorted."""
        return tuple(sorted(self._values))

    def source(self, name: str) -> str:
        """`memory` for what is there."""
        return "memory" if check_name(name) in self._values else ""

    def set(self, name: str, value: str) -> str:
        """Keeps the value."""
        self._values[check_name(name)] = check_value(name, value)
        return "memory"

    def remove(self, name: str) -> bool:
        """Forgets the value; False when there was none."""
        return self._values.pop(check_name(name), None) is not None


def cases() -> list[Case]:
    """Every case; each wants a store of its own that is empty."""
    return [
        a_value_comes_back_as_it_was_and_again_after_opening_anew,
        an_unknown_name_has_no_value,
        setting_again_replaces,
        names_are_sorted_and_have_a_source,
        a_removed_value_is_gone_and_removing_again_says_so,
        bad_names_are_refused_everywhere,
        short_values_are_refused_and_not_shown,
        no_representation_holds_a_value,
    ]


def a_value_comes_back_as_it_was_and_again_after_opening_anew(open_: Open) -> None:
    """Durable, byte for byte."""
    assert open_().set("API_TOKEN", _VALUE)
    assert open_().get("API_TOKEN") == _VALUE


def an_unknown_name_has_no_value(open_: Open) -> None:
    """None, no source, no name."""
    store = open_()
    assert store.get("NOBODY") is None
    assert store.source("NOBODY") == ""
    assert store.names() == ()


def setting_again_replaces(open_: Open) -> None:
    """The last one counts; others are untouched."""
    store = open_()
    store.set("A", "first value")
    store.set("B", "other value")
    store.set("A", "second value")
    assert (store.get("A"), store.get("B")) == ("second value", "other value")


def names_are_sorted_and_have_a_source(open_: Open) -> None:
    """What `set` said is what `source` says."""
    store = open_()
    where = store.set("b.two", "value two")
    store.set("A-one", "value one")
    assert store.names() == ("A-one", "b.two")
    assert store.source("b.two") == where


def a_removed_value_is_gone_and_removing_again_says_so(open_: Open) -> None:
    """Only that one goes."""
    store = open_()
    store.set("A", "value one")
    store.set("B", "value two")
    assert store.remove("A")
    assert not open_().remove("A")
    assert (open_().get("A"), open_().names()) == (None, ("B",))


def bad_names_are_refused_everywhere(open_: Open) -> None:
    """Also where nothing would happen."""
    store = open_()
    for name in ("", "a b", "../x", "-a", "ü"):
        for act in (store.get, store.source, store.remove, lambda one: store.set(one, "long enough")):
            assert _refusal(act, name) == "secret_name"


def short_values_are_refused_and_not_shown(open_: Open) -> None:
    """With a reason, and nothing is kept."""
    store = open_()
    assert _refusal(lambda value: store.set("PIN", value), "12z45") == "secret_too_short"
    assert store.names() == ()


def no_representation_holds_a_value(open_: Open) -> None:
    """Nor does the store's own text."""
    store = open_()
    store.set("A", "plain value")
    assert "plain value" not in f"{store!r} {store}"


def _refusal(act: Callable[[str], object], value: str) -> str:
    refused: Invalid | None = None
    try:
        act(value)
    except Invalid as error:
        refused = error
    assert refused is not None, f"{value!r} was accepted"
    assert len(value) < 5 or value not in refused.message + refused.hint + refused.detail
    return refused.reason
