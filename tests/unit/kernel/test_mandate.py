"""Mandates: they answer an ASK within their bounds, never a DENY, and say what must be reserved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from atlas.kernel.hold import Cap, Meter
from atlas.kernel.mandate import EVER, Granted, Mandate, MandateFile, Window, answers
from atlas.kernel.policy import Proposal, Ruling
from atlas.kernel.rule import Spoke

ASK = Ruling("ask", "because")
BERLIN = timezone(timedelta(hours=1))


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1_000_000)


NOW = at("2026-11-16T12:00:00+00:00")  # a Monday


def zones(name: str) -> tzinfo | None:
    return {"UTC": UTC, "Europe/Berlin": BERLIN}.get(name)


def mandate(**more: Any) -> Mandate:
    return Mandate(**{"id": "m", "granted_by": "ada", "tools": ("refund",), **more})


def wanted(args: Any = None, **more: Any) -> Proposal:
    return Proposal(
        **{
            "kind": "tool",
            "name": "refund",
            "effect_class": "external_side_effect",
            "args": args or {},
            "agent": "shop",
            "principal": "owner",
            **more,
        }
    )


def asked(one: Mandate, proposal: Proposal | None = None, ruling: Ruling = ASK, now: int = NOW) -> Granted | None:
    return answers(proposal or wanted(), ruling, (one,), now, zones)


def test_it_answers_an_ask_and_names_itself_and_who_granted_it() -> None:
    granted = asked(mandate())
    assert granted is not None
    assert (granted.mandate, granted.by, granted.uses) == ("m", "ada", 1)
    assert granted.meters == (Meter("mandate/m", "2026-11-16"),)


@pytest.mark.parametrize("decision", ["deny", "allow"])
def test_it_answers_nothing_but_an_ask(decision: Any) -> None:
    assert asked(mandate(), ruling=Ruling(decision, "")) is None


def test_it_does_not_stand_in_for_a_second_person() -> None:
    assert asked(mandate(), ruling=Ruling("ask", "", second_person=True)) is None


def test_what_the_floor_asks_about_needs_to_be_named() -> None:
    floor = Ruling("ask", "", spoke=(Spoke("floor", "payment-name", "ask"), Spoke("class", "default", "ask")))
    assert asked(mandate(), ruling=floor) is None
    assert asked(mandate(hazards=("rm-*",)), ruling=floor) is None
    assert asked(mandate(hazards=("payment-*",)), ruling=floor) is not None


@pytest.mark.parametrize(
    "changes, proposal",
    [
        ({}, {"name": "pay"}),
        ({}, {"kind": "spawn"}),
        ({"agents": ("clerk",)}, {}),
        ({"principals": ("ada",)}, {}),
        ({"targets": {"to": "acme-*"}}, {"args": {"to": "other"}}),
        ({"targets": {"to": "acme-*"}}, {"args": {"to": ["acme-1", "other"]}}),
        ({"targets": {"to": "acme-*"}}, {"args": {}}),
        ({"revoked": True}, {}),
    ],
)
def test_outside_its_scope_a_person_is_asked(changes: dict[str, Any], proposal: dict[str, Any]) -> None:
    assert asked(mandate(**changes), wanted(**proposal)) is None


def test_inside_its_targets_it_answers() -> None:
    one = mandate(targets={"to": ("acme-*", "self")}, agents=("sh*",))
    assert asked(one, wanted({"to": ["acme-1", "self"]})) is not None


@pytest.mark.parametrize(
    "window, time, is_inside",
    [
        (Window(start="09:00", end="17:00"), "2026-11-16T09:00:00+01:00", True),
        (Window(start="09:00", end="17:00"), "2026-11-16T08:59:00+01:00", False),
        (Window(start="09:00", end="17:00"), "2026-11-16T17:00:00+01:00", False),
        (Window(days=("mon",)), "2026-11-16T23:59:00+01:00", True),
        (Window(days=("mon",)), "2026-11-16T23:59:00+00:00", False),
        (Window(days=("tue",)), "2026-11-16T12:00:00+01:00", False),
        (Window(days=("mon",), start="22:00", end="06:00"), "2026-11-17T05:00:00+01:00", True),
        (Window(days=("mon",), start="22:00", end="06:00"), "2026-11-16T05:00:00+01:00", False),
    ],
)
def test_it_holds_in_its_window_in_its_zone(window: Window, time: str, is_inside: bool) -> None:
    one = mandate(window=window, zone="Europe/Berlin")
    assert (asked(one, now=at(time)) is not None) is is_inside


def test_a_zone_nobody_knows_answers_nothing() -> None:
    assert asked(mandate(zone="Mars/Base")) is None


@pytest.mark.parametrize(
    "expires_at, is_valid",
    [
        ("2026-11-16", True),
        ("2026-11-15", False),
        ("2026-11-16T12:00:00Z", False),
        ("2026-11-16T12:00:01Z", True),
        ("2026-11-16T13:30:00+02:00", False),
    ],
)
def test_it_expires(expires_at: str, is_valid: bool) -> None:
    assert (asked(mandate(expires_at=expires_at)) is not None) is is_valid


def test_money_and_uses_are_capped_by_the_budgets_own_caps() -> None:
    one = mandate(amount="$.usd", usd_per_day=50, usd_total=500.5, uses_per_day=3)
    granted = asked(one, wanted({"usd": 12.5}))
    assert granted is not None
    assert granted.amount_micro_usd == 12_500_000
    assert granted.caps == (
        Cap("mandate m usd_per_day", "mandate/m", "2026-11-16", "2026-11-16", 50_000_000),
        Cap("mandate m usd_total", "mandate/m", "", EVER, 500_500_000),
        Cap("mandate m uses_per_day", "mandate/m", "2026-11-16", "2026-11-16", None, 3),
    )
    assert all(cap.covers(meter) for cap in granted.caps for meter in granted.meters)


@pytest.mark.parametrize("usd", [None, "x", "", -1, True, [1], {"a": 1}, "NaN", "Infinity", 1e30])
def test_an_amount_that_cannot_be_read_answers_nothing(usd: Any) -> None:
    assert asked(mandate(amount="$.usd", usd_per_day=50), wanted({"usd": usd})) is None
    assert asked(mandate(amount="$.usd", usd_per_day=50), wanted({})) is None


def test_an_amount_is_rounded_up_and_limited_per_use() -> None:
    granted = asked(mandate(amount="$.usd", usd_per_use=1), wanted({"usd": "0.0000001"}))
    assert granted is not None
    assert granted.amount_micro_usd == 1
    assert asked(mandate(amount="$.usd", usd_per_use=1), wanted({"usd": 1.000001})) is None


def test_the_day_is_that_of_its_zone() -> None:
    granted = asked(mandate(zone="Europe/Berlin"), now=at("2026-11-16T23:30:00+00:00"))
    assert granted is not None
    assert granted.meters == (Meter("mandate/m", "2026-11-17"),)


def test_the_first_that_covers_answers() -> None:
    granted = answers(wanted(), ASK, (mandate(id="a", tools=("x",)), mandate(id="b")), NOW, zones)
    assert granted is not None
    assert granted.mandate == "b"


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"usd_total": 5}, "missing_amount"),
        ({"amount": "a["}, "bad_path"),
        ({"targets": {"a[": "x"}}, "bad_path"),
        ({"zone": "Mars/Base"}, "unknown_zone"),
        ({"window": Window(start="09:00", end="09:00")}, "empty_window"),
        ({"expires_at": "2026-02-31"}, "bad_value"),
        ({"tools": ("*",)}, "mandate_too_wide"),
    ],
)
def test_a_mandate_that_makes_no_sense_is_told(changes: dict[str, Any], code: str) -> None:
    assert [found.code for found in MandateFile((mandate(**changes),)).findings(zones)] == [code]


def test_two_of_one_name_are_told() -> None:
    assert [found.code for found in MandateFile((mandate(), mandate())).findings(zones)] == ["duplicate_mandate"]
    assert list(MandateFile((mandate(),)).findings(zones)) == []
